"""What the Python launchers' scripts share: a client looks at what was started."""
import os
import socket
import sys
import time

import pymongo

BIN = os.environ["SHOAL_BIN"]  # the folder with mongod and mongos
SECRETS = os.environ["SHOAL_SECRETS"]  # the folder with a key file and certificates


def free_port(n=1):
    """The first of n ports in a row that nobody listens on."""
    while True:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            first = s.getsockname()[1]
        try:
            for p in range(first, first + n):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", p))
            return first
        except OSError:
            continue


def expect(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, expected {want!r}")


def use(uri, **options):
    """Writes and reads, and returns what hello says. The deployment must be there soon."""
    with pymongo.MongoClient(uri, **{"serverSelectionTimeoutMS": 20000, **options}) as client:
        c = client.launched.c
        c.insert_one({"n": 1})
        expect("documents read back", c.count_documents({"n": 1}) > 0, True)
        return client.admin.command("hello"), client


def gone(port):
    """Waits until nobody listens on a port."""
    for _ in range(200):
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.1)
    sys.exit(f"port {port} still answers")
