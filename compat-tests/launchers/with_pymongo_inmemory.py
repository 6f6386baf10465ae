"""pymongo_inmemory: one server, found in PATH; and one whose data have a user, who logs in by the address that the launcher is given. It starts every
server with the same options, so none asks for a user or for TLS."""
import os
import subprocess
import tempfile

import pymongo

from check import BIN, expect, free_port, gone, use

os.environ["PATH"] = BIN + os.pathsep + os.environ["PATH"]
os.environ["PYMONGOIM__USE_LOCAL_MONGOD"] = "True"
os.environ["PYMONGOIM__MONGO_VERSION"] = "7.0"

import pymongo_inmemory  # noqa: E402: it reads the environment

with pymongo_inmemory.MongoClient() as client:
    client.launched.c.insert_one({"n": 1})
    expect("documents read back", client.launched.c.count_documents({}), 1)
print("pymongo_inmemory: ok")

with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    port = free_port()
    server = subprocess.Popen([f"{BIN}/mongod", "--dbpath", folder, "--port", str(port)], stdout=subprocess.DEVNULL)
    _, _ = use(f"mongodb://127.0.0.1:{port}/")
    with pymongo.MongoClient(port=port) as client:
        client.admin.command("createUser", "ann", pwd="a secret", roles=["root"])
    server.terminate()
    server.wait(30)
    gone(port)
    os.remove(f"{folder}/mongod.lock")  # the launcher takes it for a running server's, even when it is empty
    os.environ["PYMONGOIM__MONGOD_DATA_FOLDER"] = folder
    with pymongo_inmemory.MongoClient(f"mongodb://ann:a%20secret@127.0.0.1:{port}/?authSource=admin", port) as client:
        expect("documents of before", client.launched.c.count_documents({}), 1)
        users = client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
        expect("users", users, [{"user": "ann", "db": "admin"}])
print("pymongo_inmemory with a user: ok")
