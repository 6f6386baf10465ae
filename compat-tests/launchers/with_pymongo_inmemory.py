"""pymongo_inmemory: one server, found in PATH."""
import os

from check import BIN, expect

os.environ["PATH"] = BIN + os.pathsep + os.environ["PATH"]
os.environ["PYMONGOIM__USE_LOCAL_MONGOD"] = "True"
os.environ["PYMONGOIM__MONGO_VERSION"] = "7.0"

import pymongo_inmemory  # noqa: E402: it reads the environment

with pymongo_inmemory.MongoClient() as client:
    client.launched.c.insert_one({"n": 1})
    expect("documents read back", client.launched.c.count_documents({}), 1)
print("pymongo_inmemory: ok")
