// The secured program starts a sharded cluster of processes as in production: config server, two shards and two routers with a key
// file, everything over TLS, and a user. It prints the connection string and runs until it is told to end.
//
//	go run ./secured -shoal ../../bin/shoal
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func main() {
	shoal := flag.String("shoal", "../../bin/shoal", "the server's binary")
	flag.Parse()
	if err := run(*shoal); err != nil {
		fmt.Fprintln(os.Stderr, "secured:", err)
		os.Exit(1)
	}
}

// cluster is the processes and the folder of their files.
type cluster struct {
	shoal, dir string
	procs      []*exec.Cmd
}

func run(shoal string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	dir, err := os.MkdirTemp("", "shoal-secured-")
	if err != nil {
		return err
	}
	c := &cluster{shoal: shoal, dir: dir}
	defer c.end()
	if err := c.secrets(); err != nil {
		return err
	}
	started := make(chan error, 1)
	go func() {
		uri, err := c.start()
		if err == nil {
			fmt.Println("Connection string: " + uri)
		}
		started <- err
	}()
	select {
	case err := <-started:
		if err != nil {
			return err
		}
		<-stop
	case <-stop:
	}
	return nil
}

func (c *cluster) file(name string) string { return filepath.Join(c.dir, name) }

// secrets writes the key file, an authority, and the servers' certificate.
func (c *cluster) secrets() error {
	key := make([]byte, 300)
	_, _ = rand.Read(key)
	if err := os.WriteFile(c.file("key"), []byte(base64.StdEncoding.EncodeToString(key)), 0o600); err != nil {
		return err
	}
	caKey, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, SubjectKeyId: []byte{1},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return err
	}
	serverKey, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, ca, serverKey.Public(), caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(serverKey)
	if err != nil {
		return err
	}
	block := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	if err := os.WriteFile(c.file("ca.pem"), block("CERTIFICATE", caDER), 0o600); err != nil {
		return err
	}
	return os.WriteFile(c.file("server.pem"), append(block("CERTIFICATE", der), block("PRIVATE KEY", keyDER)...), 0o600)
}

// launch starts a process on a free port and waits until it listens.
func (c *cluster) launch(program string, args ...string) (addr string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	addr = l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(addr)
	args = append([]string{program, "--port", port, "--bind_ip", "127.0.0.1", "--keyFile", c.file("key"), "--tlsMode", "requireTLS",
		"--tlsCertificateKeyFile", c.file("server.pem"), "--tlsCAFile", c.file("ca.pem"), "--tlsAllowConnectionsWithoutCertificates",
		"--setParameter", "enableTestCommands=1"}, args...)
	log, err := os.Create(c.file("log" + strconv.Itoa(len(c.procs))))
	if err != nil {
		return "", err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(c.shoal, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return "", err
	}
	c.procs = append(c.procs, cmd)
	for range 300 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			return addr, conn.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
	text, _ := os.ReadFile(log.Name())
	return "", fmt.Errorf("%s does not listen: %s", program, text[max(0, len(text)-2000):])
}

// member starts a set of one member.
func (c *cluster) member(role, set string) (addr string, err error) {
	data := c.file(set)
	if err := os.Mkdir(data, 0o700); err != nil {
		return "", err
	}
	if addr, err = c.launch("mongod", role, "--replSet", set, "--dbpath", data); err != nil {
		return "", err
	}
	config := bson.D{{Key: "_id", Value: set}, {Key: "configsvr", Value: role == "--configsvr"},
		{Key: "members", Value: bson.A{bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: addr}}}}}
	return addr, c.admin(c.uri("", addr)+"&directConnection=true", bson.D{{Key: "replSetInitiate", Value: config}})
}

func (c *cluster) uri(user string, addrs ...string) string {
	return "mongodb://" + user + strings.Join(addrs, ",") + "/?tls=true&tlsCAFile=" + c.file("ca.pem")
}

// admin runs commands, each until it succeeds: a set that was just initiated has no primary yet.
func (c *cluster) admin(uri string, cmds ...bson.D) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.Background()) }()
	for _, cmd := range cmds {
		for {
			err := client.Database("admin").RunCommand(ctx, cmd).Err()
			if err == nil {
				break
			}
			var refused mongo.CommandError
			if ctx.Err() != nil || errors.As(err, &refused) && refused.Code == 13 {
				return fmt.Errorf("%s: %w", cmd[0].Key, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return nil
}

func (c *cluster) start() (uri string, err error) {
	var members []string
	for _, m := range [][2]string{{"--configsvr", "cfg"}, {"--shardsvr", "s0"}, {"--shardsvr", "s1"}} {
		addr, err := c.member(m[0], m[1])
		if err != nil {
			return "", err
		}
		members = append(members, m[1]+"/"+addr)
	}
	var routers []string
	for range 2 {
		addr, err := c.launch("mongos", "--configdb", members[0])
		if err != nil {
			return "", err
		}
		routers = append(routers, addr)
	}
	create := bson.D{{Key: "createUser", Value: "root"}, {Key: "pwd", Value: "a secret"}, {Key: "roles", Value: bson.A{"root"}}}
	if err := c.admin(c.uri("", routers[0]), create); err != nil {
		return "", err
	}
	uri = c.uri("root:a%20secret@", routers...) + "&authSource=admin"
	return uri, c.admin(uri, bson.D{{Key: "addShard", Value: members[1]}}, bson.D{{Key: "addShard", Value: members[2]}})
}

func (c *cluster) end() {
	for i := len(c.procs) - 1; i >= 0; i-- {
		_ = c.procs[i].Process.Signal(syscall.SIGTERM)
	}
	for _, p := range c.procs {
		t := time.AfterFunc(20*time.Second, func() { _ = p.Process.Kill() })
		_ = p.Wait()
		t.Stop()
	}
	_ = os.RemoveAll(c.dir)
}
