"""pymongo against a running server: MONGODB_URI, TOPOLOGY."""

import datetime
import os
import unittest

import gridfs
import pymongo
from bson import Binary, Decimal128, Int64, ObjectId, Regex, Timestamp
from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

URI = os.environ["MONGODB_URI"]


class Crud(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = MongoClient(URI, serverSelectionTimeoutMS=5000)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def setUp(self):
        self.client.drop_database("compat_python")
        self.db = self.client.compat_python

    def test_types(self):
        doc = {
            "_id": ObjectId(), "d": 1.5, "s": "täxt", "o": {"a": [1, None, {"b": []}]}, "bin": b"ab", "bin5": Binary(b"ab", 5), "t": True,
            "at": datetime.datetime(2020, 5, 1, 12, 30, 15, 123000), "re": Regex("^a", "i"), "i": 7, "l": Int64(2**60),
            "ts": Timestamp(5, 6), "dec": Decimal128("1.10"),
        }
        self.db.types.insert_one(doc)
        self.assertEqual(self.db.types.find_one({"_id": doc["_id"]}), doc)
        self.assertEqual(list(self.db.types.find_one()), list(doc))

    def test_cursor_over_many_batches(self):
        self.db.n.insert_many([{"_id": i, "g": i % 5} for i in range(1000)])
        self.assertEqual([d["_id"] for d in self.db.n.find().sort("_id", 1).batch_size(13)], list(range(1000)))
        self.assertEqual(self.db.n.count_documents({"g": 2}), 200)
        self.assertEqual(sorted(self.db.n.distinct("g")), [0, 1, 2, 3, 4])

    def test_bulk(self):
        r = self.db.b.bulk_write([InsertOne({"_id": 1}), UpdateOne({"_id": 2}, {"$set": {"x": 1}}, upsert=True), DeleteOne({"_id": 1})])
        self.assertEqual((r.inserted_count, r.upserted_ids, r.deleted_count), (1, {1: 2}, 1))
        with self.assertRaises(BulkWriteError) as e:
            self.db.b.insert_many([{"_id": 2}, {"_id": 3}])
        self.assertEqual(e.exception.details["writeErrors"][0]["code"], 11000)
        self.assertIsNone(self.db.b.find_one({"_id": 3}))

    def test_find_and_modify(self):
        self.db.f.insert_one({"_id": 1, "n": 1})
        got = self.db.f.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}, return_document=pymongo.ReturnDocument.AFTER)
        self.assertEqual(got, {"_id": 1, "n": 2})
        self.assertEqual(self.db.f.find_one_and_delete({"_id": 1})["n"], 2)
        self.assertIsNone(self.db.f.find_one_and_replace({"_id": 9}, {"x": 1}))

    def test_indexes(self):
        self.db.i.create_index([("a", 1), ("b", -1)], unique=True, name="ab")
        self.db.i.insert_one({"a": 1, "b": 1})
        with self.assertRaises(DuplicateKeyError) as e:
            self.db.i.insert_one({"a": 1, "b": 1})
        self.assertIn("index: ab dup key: { a: 1, b: 1 }", str(e.exception))
        self.assertEqual(self.db.i.index_information()["ab"]["key"], [("a", 1), ("b", -1)])

    def test_aggregation(self):
        self.db.a.insert_many([{"_id": i, "g": i % 3, "v": i} for i in range(30)])
        got = list(self.db.a.aggregate([
            {"$group": {"_id": "$g", "sum": {"$sum": "$v"}, "max": {"$max": "$v"}}}, {"$sort": {"_id": 1}},
        ]))
        self.assertEqual(got, [{"_id": 0, "sum": 135, "max": 27}, {"_id": 1, "sum": 145, "max": 28}, {"_id": 2, "sum": 155, "max": 29}])

    def test_errors(self):
        with self.assertRaises(OperationFailure) as e:
            self.db.command("nonsense")
        self.assertEqual((e.exception.code, e.exception.details["codeName"]), (59, "CommandNotFound"))
        with self.assertRaises(OperationFailure) as e:
            self.db.c.update_one({}, {"$bad": {"a": 1}})
        self.assertEqual(e.exception.code, 9)
        with self.assertRaises(OperationFailure) as e:
            self.db.command({"find": "c", "nosuchfield": 1})
        self.assertEqual(e.exception.code, 40415)

    def test_gridfs(self):
        fs = gridfs.GridFS(self.db)
        data = b"shoal" * 100000
        fid = fs.put(data, filename="f")
        self.assertEqual(fs.get(fid).read(), data)

    def test_collections(self):
        self.db.create_collection("cap", capped=True, size=4096, max=3)
        self.db.cap.insert_many([{"i": i} for i in range(5)])
        self.assertEqual([d["i"] for d in self.db.cap.find()], [2, 3, 4])
        self.assertTrue(self.db.cap.options()["capped"])
        self.assertEqual(self.db.list_collection_names(), ["cap"])

    def test_sessions(self):
        with self.client.start_session(causal_consistency=True) as s:
            self.db.s.insert_one({"_id": 1}, session=s)
            self.assertEqual(self.db.s.find_one({"_id": 1}, session=s), {"_id": 1})


if __name__ == "__main__":
    unittest.main()
