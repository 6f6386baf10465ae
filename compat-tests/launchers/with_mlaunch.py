"""mlaunch: a single server, a set of three, a sharded cluster, and one with a user, a key file and TLS: init, stop, start."""
import subprocess
import sys
import tempfile

import pymongo

from check import BIN, SECRETS, expect, free_port, gone, use


def mlaunch(*args):
    run = subprocess.run([sys.executable, "-m", "mtools.mlaunch.mlaunch", *args], capture_output=True, text=True, timeout=120)
    if run.returncode != 0:
        sys.exit(f"mlaunch {' '.join(args)}: {run.stdout}{run.stderr}")
    return run.stdout


def cycle(name, ports, check, *args):
    first = free_port(ports)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        base = ["--dir", folder]
        try:
            mlaunch("init", *base, "--binarypath", BIN, "--port", str(first), *args)
            check(first)
            mlaunch("stop", *base)
            for p in range(first, first + ports):
                gone(p)
            mlaunch("start", *base)
            check(first)
        finally:
            mlaunch("kill", *base, "--signal", "SIGKILL")
    print(f"mlaunch {name}: ok")


def single(port):
    hello, _ = use(f"mongodb://127.0.0.1:{port}/")
    expect("isWritablePrimary", hello["isWritablePrimary"], True)


def replset(port):
    hello, _ = use(f"mongodb://localhost:{port}/", replicaSet="replset", w="majority")
    expect("hosts", sorted(hello["hosts"]), [f"localhost:{port + i}" for i in range(3)])


def sharded(port):
    hello, _ = use(f"mongodb://127.0.0.1:{port}/")
    expect("msg", hello.get("msg"), "isdbgrid")
    with pymongo.MongoClient(port=port) as client:
        expect("shards", [s["_id"] for s in client.admin.command("listShards")["shards"]], ["shard01", "shard02"])


def secured(port):
    uri = f"mongodb://root:a%20secret@localhost:{port}/"
    hello, _ = use(uri, tls=True, tlsCAFile=f"{SECRETS}/ca.pem")
    expect("msg", hello.get("msg"), "isdbgrid")
    with pymongo.MongoClient(port=port, tls=True, tlsCAFile=f"{SECRETS}/ca.pem") as client:
        try:
            client.launched.c.find_one()
            sys.exit("a client without a user reads")
        except pymongo.errors.OperationFailure as e:
            expect("code", e.code, 13)


cycle("single", 1, single, "--single")
cycle("set of three", 3, replset, "--replicaset", "--nodes", "3")
cycle("sharded", 4, sharded, "--sharded", "2", "--replicaset", "--nodes", "1", "--config", "1", "--csrs", "--mongos", "1")
cycle("secured", 4, secured, "--sharded", "2", "--replicaset", "--nodes", "1", "--config", "1", "--csrs", "--mongos", "1", "--hostname", "localhost",
      "--auth", "--username", "root", "--password", "a secret", "--auth-roles", "root", "--sslMode", "requireSSL",
      "--sslPEMKeyFile", f"{SECRETS}/server.pem", "--sslCAFile", f"{SECRETS}/ca.pem", "--sslAllowConnectionsWithoutCertificates")
