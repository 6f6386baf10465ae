// The secured program starts a sharded cluster of processes as in production: config server, two shards and two routers with a key
// file, everything over TLS, and a user. It prints the connection string and runs until it is told to end.
//
//	go run ./secured -shoal ../../bin/shoal
//
// With -secrets it only writes the key file and the certificates to a folder, for clusters that others start.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/youmark/pkcs8"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func main() {
	shoal := flag.String("shoal", "../../bin/shoal", "the server's binary")
	secrets := flag.String("secrets", "", "only write the key file and the certificates to this folder")
	flag.Parse()
	if *secrets != "" {
		if err := (&cluster{dir: *secrets}).secrets(); err != nil {
			fmt.Fprintln(os.Stderr, "secured:", err)
			os.Exit(1)
		}
		return
	}
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

// secrets writes the key file, an authority, the servers' certificate, and those of a client.
func (c *cluster) secrets() error {
	key := make([]byte, 300)
	_, _ = rand.Read(key)
	if err := os.WriteFile(c.file("key"), []byte(base64.StdEncoding.EncodeToString(key)), 0o600); err != nil {
		return err
	}
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	server, serverKey, err := ca.issue(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(serverKey)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.file("ca.pem"), block("CERTIFICATE", ca.der), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(c.file("server.pem"), append(server, block("PRIVATE KEY", keyDER)...), 0o600); err != nil {
		return err
	}
	return c.client(ca)
}

// client writes the client's certificate with its key in the three forms that the Go driver's tests ask for: client.pem,
// client-pkcs8.pem, and client-pkcs8-encrypted.pem with the password "password".
func (c *cluster) client(ca *authority) error {
	subject, err := clientSubject()
	if err != nil {
		return err
	}
	cert, key, err := ca.issue(&x509.Certificate{SerialNumber: big.NewInt(3), RawSubject: subject, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return err
	}
	plain, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	wrapped, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	encrypted, err := pkcs8.MarshalPrivateKey(key, []byte("password"), nil)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(c.file("client.pem"), slices.Concat(cert, block("EC PRIVATE KEY", plain)), 0o600),
		os.WriteFile(c.file("client-pkcs8.pem"), slices.Concat(cert, block("PRIVATE KEY", wrapped)), 0o600),
		os.WriteFile(c.file("client-pkcs8-encrypted.pem"), slices.Concat(cert, block("ENCRYPTED PRIVATE KEY", encrypted)), 0o600))
}

// clientSubject returns the name that the Go driver's tests expect, C=US,ST=New York,L=New York City,O=MDB,OU=Drivers,CN=client. RFC
// 2253 writes the last attribute of a certificate first, an order that pkix.Name does not make.
func clientSubject() ([]byte, error) {
	var names pkix.RDNSequence
	for _, part := range []struct {
		kind  int // the last number of its type, under 2.5.4
		value string
	}{{3, "client"}, {11, "Drivers"}, {10, "MDB"}, {7, "New York City"}, {8, "New York"}, {6, "US"}} {
		names = append(names, pkix.RelativeDistinguishedNameSET{{Type: asn1.ObjectIdentifier{2, 5, 4, part.kind}, Value: part.value}})
	}
	return asn1.Marshal(names)
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	der  []byte
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, SubjectKeyId: []byte{1},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	return &authority{cert, key, der}, err
}

// issue signs a certificate for a new key and returns both.
func (a *authority) issue(cert *x509.Certificate) ([]byte, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	cert.NotBefore, cert.NotAfter, cert.KeyUsage = a.cert.NotBefore, a.cert.NotAfter, x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	return block("CERTIFICATE", der), key, err
}

func block(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }

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
