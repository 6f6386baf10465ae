"""mongo-orchestration: a set of three and sharded clusters, one with a user, a key and TLS, by its HTTP interface: made, stopped, started, removed."""
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import pymongo

from check import BIN, SECRETS, expect, free_port, use

port = free_port()
CERTIFICATE = f"{SECRETS}/client.pem"  # the service's own, which it shows to servers with TLS


def call(method, path, body=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, data=json.dumps(body).encode() if body is not None else None)
    try:
        with urllib.request.urlopen(request, timeout=100) as r:
            text = r.read()
            return json.loads(text) if text else None
    except urllib.error.HTTPError as e:
        sys.exit(f"{method} {path}: {e.code} {e.read().decode()}")


def await_service():
    for _ in range(100):
        try:
            return call("GET", "/")
        except OSError:
            time.sleep(0.1)
    sys.exit("mongo-orchestration does not start")


def replset():
    made = call("POST", "/v1/replica_sets", {"id": "rs", "members": [{"procParams": {"port": p}} for p in range(first, first + 3)]})
    hello, _ = use(made["mongodb_uri"], w="majority")
    expect("members", len(hello["hosts"]), 3)
    server = made["members"][2]["server_id"]
    call("POST", f"/v1/servers/{server}", {"action": "stop"})
    use(made["mongodb_uri"], replicaSet="rs", w="majority")
    call("POST", f"/v1/servers/{server}", {"action": "start"})
    for _ in range(100):
        up = call("GET", "/v1/replica_sets/rs/members")["members"]
        if len(up) == 3:
            break
        time.sleep(0.1)
    expect("members that are up", len(up), 3)
    call("DELETE", "/v1/replica_sets/rs")
    print("mongo-orchestration set: ok")


def sharded():
    made = call("POST", "/v1/sharded_clusters", {
        "id": "sh", "configsvrs": [{"members": [{"procParams": {"port": first}}]}], "routers": [{"port": first + 1}],
        "shards": [{"id": f"s{i}", "shardParams": {"members": [{"procParams": {"port": first + 2 + i}}]}} for i in range(2)]})
    hello, _ = use(made["mongodb_uri"])
    expect("msg", hello.get("msg"), "isdbgrid")
    with pymongo.MongoClient(made["mongodb_uri"]) as client:
        expect("shards", sorted(s["_id"] for s in client.admin.command("listShards")["shards"]), ["s0", "s1"])
    call("DELETE", "/v1/sharded_clusters/sh")
    print("mongo-orchestration sharded: ok")


def secured():
    made = call("POST", "/v1/sharded_clusters", {
        "id": "sec", "login": "root", "password": "secret", "auth_key": "onekeyonekeyonekey",
        "sslParams": {"tlsMode": "requireTLS", "tlsCertificateKeyFile": f"{SECRETS}/server.pem", "tlsCAFile": f"{SECRETS}/ca.pem"},
        "configsvrs": [{"members": [{"procParams": {"port": first}}]}], "routers": [{"port": first + 1}],
        "shards": [{"id": f"s{i}", "shardParams": {"members": [{"procParams": {"port": first + 2 + i}}]}} for i in range(2)]})
    at, tls = f"localhost:{first + 1}", {"tls": True, "tlsCAFile": f"{SECRETS}/ca.pem", "tlsCertificateKeyFile": CERTIFICATE}
    hello, _ = use(f"mongodb://root:secret@{at}/", **tls)
    expect("msg", hello.get("msg"), "isdbgrid")
    try:
        use(f"mongodb://root:secret@{at}/", serverSelectionTimeoutMS=500)
        sys.exit("a client without TLS gets in")
    except pymongo.errors.ServerSelectionTimeoutError:
        pass
    with pymongo.MongoClient(f"mongodb://{at}/", **tls) as client:
        try:
            client.launched.c.find_one()
            sys.exit("a client without a user reads")
        except pymongo.errors.OperationFailure as e:
            expect("code", e.code, 13)
    call("DELETE", f"/v1/sharded_clusters/{made['id']}")
    print("mongo-orchestration secured: ok")


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    config = os.path.join(folder, "config.json")
    with open(config, "w") as f:
        json.dump({"releases": {"shoal": BIN}}, f)
    service = subprocess.Popen(
        [sys.executable, "-m", "mongo_orchestration.server", "-f", config, "-e", "shoal", "-b", "127.0.0.1", "-p", str(port), "--no-fork", "start"],
        cwd=folder, env={**os.environ, "TMPDIR": folder, "MONGO_ORCHESTRATION_HOME": folder, "MONGO_ORCHESTRATION_CLIENT_CERT": CERTIFICATE}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_service()
        first = free_port(4)
        replset()
        first = free_port(4)
        sharded()
        first = free_port(4)
        secured()
    finally:
        service.terminate()
        service.wait(20)
