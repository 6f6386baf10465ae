package console

import (
	"net"
	"strconv"

	"github.com/shoaldb/shoal/query/value"
)

// This file has the lines that tools wait for or read; their ids, messages and attributes are the real server's.

// ConnCtx returns the ctx of lines about a connection.
func ConnCtx(id int64) string { return "conn" + strconv.FormatInt(id, 10) }

// Accepted logs a new connection, unless quiet.
func (l *Log) Accepted(remote net.Addr, balanced bool, id, count int64) {
	if l.Quiet() {
		return
	}
	l.Info(Network, 22943, "listener", "Connection accepted").Str("remote", remote.String()).
		Bool("isLoadBalanced", balanced).Int("connectionId", id).Int("connectionCount", count).Write()
}

// Refused warns that connections were not accepted, with the reason for the last of them.
func (l *Log) Refused(err error, n int) {
	l.Warning(Network, 22942, "listener", "Connection refused").Int("connections", int64(n)).Err(err).Write()
}

// Ended logs that a connection has gone, unless quiet.
func (l *Log) Ended(remote net.Addr, balanced bool, id, count int64) {
	if l.Quiet() {
		return
	}
	l.Info(Network, 22944, ConnCtx(id), "Connection ended").Str("remote", remote.String()).
		Bool("isLoadBalanced", balanced).Int("connectionId", id).Int("connectionCount", count).Write()
}

// NotOurs logs that a client speaks another protocol and is disconnected.
func (l *Log) NotOurs(remote net.Addr, id int64, code int32, codeName, msg string) {
	doc := value.Doc(value.F("code", value.NewInt32(code)), value.F("codeName", value.NewString(codeName)), value.F("errmsg", value.NewString(msg)))
	l.Info(Network, 22988, ConnCtx(id), "Error receiving request from client. Ending connection from remote").Doc("error", doc).
		Str("remote", remote.String()).Int("connectionId", id).Write()
}

// ClientMetadata logs a driver's metadata from its handshake.
func (l *Log) ClientMetadata(remote net.Addr, id int64, compressors []string, doc []byte) {
	if l.Quiet() {
		return
	}
	ctx := ConnCtx(id)
	l.Info(Network, 51800, ctx, "client metadata").Str("remote", remote.String()).Str("client", ctx).
		Strs("negotiatedCompressors", compressors).Doc("doc", doc).Write()
}

// Authenticated logs a successful authentication, or a failed one with its error.
func (l *Log) Authenticated(remote string, id int64, user, db, mech string, claims []byte, err error) {
	if err != nil {
		l.Info(Access, 5286307, ConnCtx(id), "Failed to authenticate").Str("client", remote).Str("mechanism", mech).Str("user", user).Str("db", db).
			Str("error", err.Error()).Write()
		return
	}
	if !l.Quiet() {
		e := l.Info(Access, 5286306, ConnCtx(id), "Successfully authenticated").Str("client", remote).Str("mechanism", mech).Str("user", user).Str("db", db)
		if claims != nil {
			e = e.Doc("claims", claims)
		}
		e.Write()
	}
}

// Slow logs an operation past the slow threshold, or any at verbosity 1; attrs are its attributes in order, as in system.profile.
func (l *Log) Slow(connID int64, c Component, attrs []byte) {
	if l.Redacts() {
		attrs = redactAttrs(attrs)
	}
	l.Info(c, 51803, ConnCtx(connID), "Slow query").Elements(attrs).Write()
}

// Running logs a command before it runs, at verbosity 2.
func (l *Log) Running(connID int64, remote, db string, command []byte) {
	l.Debug(2, Command, 21965, ConnCtx(connID), "About to run the command").Str("db", db).Str("client", remote).
		ClientDoc("commandArgs", command).Write()
}

// Invalid logs a document that a validator rejects.
func (l *Log) Invalid(ns string, doc, errInfo []byte) {
	l.Warning(Storage, 20294, "-", "Document would fail validation").Str("namespace", ns).ClientDoc("document", doc).ClientDoc("errInfo", errInfo).Write()
}

// BuildWaits logs that an index build has all its keys and waits for its commit quorum.
func (l *Log) BuildWaits(build, ns string, quorum value.Value, missing []string) {
	l.Info(Index, 3856203, "IndexBuildsCoordinatorMongod-0", "Index build: waiting for next action before completing final phase").Str("buildUUID", build).
		Str("namespace", ns).JSON("commitQuorum", value.Show(quorum)).Strs("membersNotReady", missing).Write()
}

// RefusedSetting warns that a shard refuses a setting that the cluster has.
func (l *Log) RefusedSetting(shard, setting string, err error) {
	l.Warning(Sharding, 9990021, "ClusterSettings", "A shard refuses a setting of the cluster, and differs from the other nodes until it accepts it").Str("shardId", shard).Str("setting", setting).Err(err).Write()
}

// Restarted separates runs in a log file that is appended to.
func (l *Log) Restarted() { l.Info(Control, 20698, "-", "***** SERVER RESTARTED *****").Write() }

// Starting logs the process at its start.
func (l *Log) Starting(pid, port int, dbPath, host string) {
	l.Info(Storage, 4615611, "initandlisten", "MongoDB starting").Int("pid", int64(pid)).Int("port", int64(port)).
		Str("dbPath", dbPath).Str("architecture", "64-bit").Str("host", host).Write()
}

// Build logs the build, a JSON document.
func (l *Log) Build(ctx string, info []byte) {
	l.Info(Control, 23403, ctx, "Build Info").JSON("buildInfo", string(info)).Write()
}

// OS logs the operating system.
func (l *Log) OS(ctx, name, version string) {
	l.Info(Control, 51765, ctx, "Operating System").
		JSON("os", `{"name":`+strconv.Quote(name)+`,"version":`+strconv.Quote(version)+`}`).Write()
}

// OptionsSet logs the options the process was started with, a BSON document.
func (l *Log) OptionsSet(ctx string, parsed []byte) {
	l.Info(Control, 21951, ctx, "Options set by command line").Doc("options", parsed).Write()
}

// Waiting logs that the port accepts connections: launchers wait for this line.
func (l *Log) Waiting(ctx string, port int, secure bool) {
	l.Info(Network, 23016, ctx, "Waiting for connections").Int("port", int64(port)).Str("ssl", map[bool]string{false: "off", true: "on"}[secure]).Write()
}

// ListenFailed logs that an address could not be bound.
func (l *Log) ListenFailed(ctx string, err error) {
	l.Error(Control, 22856, ctx, "Failed to set up listener").Err(err).Write()
}

// PrimaryReady logs that the member accepts writes.
func (l *Log) PrimaryReady() {
	l.Info(Replication, 21331, "OplogApplier-0", "Transition to primary complete; database writes are now permitted").Write()
}

// Signal logs which signal ends the process.
func (l *Log) Signal(sig string, num int) {
	l.Info(Control, 23377, "SignalHandler", "Received signal").Int("signal", int64(num)).Str("error", sig).Write()
	l.Info(Control, 23381, "SignalHandler", "will terminate after current cmd ends").Write()
}

// Exiting logs the last line of a clean shutdown.
func (l *Log) Exiting(ctx string, code int) {
	l.Info(Control, 20565, ctx, "Now exiting").Write()
	l.Info(Control, 23138, ctx, "Shutting down").Int("exitCode", int64(code)).Write()
}
