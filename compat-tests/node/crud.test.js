// The Node driver against a running server: MONGODB_URI, TOPOLOGY.
import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import { Binary, Decimal128, GridFSBucket, Long, MongoClient, ObjectId, Timestamp, UUID } from 'mongodb';

const uri = process.env.MONGODB_URI;
let client, db;

before(async () => {
  client = await new MongoClient(uri, { serverSelectionTimeoutMS: 5000 }).connect();
});
after(() => client.close());
beforeEach(async () => {
  db = client.db('compat_node');
  await db.dropDatabase();
});

test('every type comes back as it went', async () => {
  const doc = {
    _id: new ObjectId(), double: 1.5, text: 'täxt', nested: { a: [1, 'b', null, { c: [] }] }, bin: new Binary(Buffer.from('ab')),
    uuid: new UUID(), yes: true, at: new Date(1234567890123), none: null, re: /^a.b$/i, int: 7, long: Long.fromString('9007199254740993'),
    ts: new Timestamp({ t: 5, i: 6 }), dec: Decimal128.fromString('1.10'),
  };
  await db.collection('types').insertOne(doc);
  const got = await db.collection('types').findOne({ _id: doc._id }, { promoteLongs: false, promoteValues: true });
  assert.deepEqual(Object.keys(got), Object.keys(doc));
  assert.equal(got.long.toString(), '9007199254740993');
  assert.equal(got.dec.toString(), '1.10');
  assert.deepEqual(got.nested, doc.nested);
  assert.equal(got.at.getTime(), doc.at.getTime());
  assert.equal(got.re.source, '^a.b$');
});

test('insert, find with sort, skip, limit and projection', async () => {
  const c = db.collection('nums');
  const r = await c.insertMany(Array.from({ length: 500 }, (_, i) => ({ _id: i, n: i % 10, s: `k${i}` })));
  assert.equal(r.insertedCount, 500);
  assert.equal(await c.countDocuments({ n: 3 }), 50);
  assert.equal(await c.estimatedDocumentCount(), 500);
  const page = await c.find({ n: { $in: [1, 2] } }).sort({ _id: -1 }).skip(3).limit(4).project({ s: 1, _id: 0 }).toArray();
  assert.deepEqual(page, [{ s: 'k481' }, { s: 'k472' }, { s: 'k471' }, { s: 'k462' }]);
  let seen = 0;
  for await (const d of c.find({}, { batchSize: 7 })) seen += d ? 1 : 0;
  assert.equal(seen, 500);
  assert.deepEqual((await c.distinct('n')).sort((a, b) => a - b), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
});

test('updates, upserts, array filters, findOneAndUpdate', async () => {
  const c = db.collection('u');
  await c.insertOne({ _id: 1, n: 1, list: [{ k: 1 }, { k: 2 }] });
  let r = await c.updateOne({ _id: 1 }, { $inc: { n: 2 }, $push: { tags: { $each: ['a', 'b'] } } });
  assert.deepEqual([r.matchedCount, r.modifiedCount], [1, 1]);
  r = await c.updateOne({ _id: 1 }, { $set: { n: 3 } });
  assert.deepEqual([r.matchedCount, r.modifiedCount], [1, 0]);
  r = await c.updateOne({ _id: 2 }, { $set: { x: 1 } }, { upsert: true });
  assert.equal(r.upsertedId, 2);
  await c.updateOne({ _id: 1 }, { $set: { 'list.$[e].v': true } }, { arrayFilters: [{ 'e.k': 2 }] });
  const after = await c.findOneAndUpdate({ _id: 1 }, { $unset: { tags: '' } }, { returnDocument: 'after' });
  assert.deepEqual(after, { _id: 1, n: 3, list: [{ k: 1 }, { k: 2, v: true }] });
  assert.deepEqual((await c.updateMany({}, [{ $set: { m: { $add: ['$_id', 10] } } }])).modifiedCount, 2);
  assert.equal((await c.findOne({ _id: 2 })).m, 12);
  assert.equal((await c.deleteMany({})).deletedCount, 2);
});

test('bulk write with an error in the middle', async () => {
  const c = db.collection('b');
  await assert.rejects(
    c.bulkWrite([{ insertOne: { document: { _id: 1 } } }, { insertOne: { document: { _id: 1 } } }, { insertOne: { document: { _id: 2 } } }], { ordered: false }),
    (e) => e.code === 11000 && e.result.insertedCount === 2 && /E11000 duplicate key error collection: compat_node\.b index: _id_ dup key: \{ _id: 1 \}/.test(e.message),
  );
});

test('indexes: unique, compound, names, errors', async () => {
  const c = db.collection('i');
  assert.equal(await c.createIndex({ a: 1, b: -1 }, { unique: true }), 'a_1_b_-1');
  await c.insertOne({ a: 1, b: 1 });
  await assert.rejects(c.insertOne({ a: 1, b: 1 }), (e) => e.code === 11000 && e.keyPattern.b === -1 && e.keyValue.a === 1);
  assert.deepEqual((await c.indexes()).map((x) => x.name), ['_id_', 'a_1_b_-1']);
  const plan = await c.find({ a: 1 }).explain('queryPlanner');
  assert.match(JSON.stringify(plan), /IXSCAN/);
  await c.dropIndex('a_1_b_-1');
  await assert.rejects(c.dropIndex('a_1_b_-1'), (e) => e.code === 27 && e.codeName === 'IndexNotFound');
});

test('aggregation with group, lookup, facet and out', async () => {
  await db.collection('o').insertMany(Array.from({ length: 90 }, (_, i) => ({ _id: i, c: i % 3, v: i })));
  await db.collection('c').insertMany([{ _id: 0, name: 'zero' }, { _id: 1, name: 'one' }, { _id: 2, name: 'two' }]);
  const got = await db.collection('o').aggregate([
    { $match: { v: { $lt: 60 } } },
    { $group: { _id: '$c', n: { $sum: 1 }, avg: { $avg: '$v' } } },
    { $lookup: { from: 'c', localField: '_id', foreignField: '_id', as: 'cat' } },
    { $set: { name: { $first: '$cat.name' } } },
    { $unset: 'cat' },
    { $sort: { _id: 1 } },
  ]).toArray();
  assert.deepEqual(got, [{ _id: 0, n: 20, avg: 28.5, name: 'zero' }, { _id: 1, n: 20, avg: 29.5, name: 'one' }, { _id: 2, n: 20, avg: 30.5, name: 'two' }]);
  const [facets] = await db.collection('o').aggregate([{ $facet: { n: [{ $count: 'all' }], top: [{ $sort: { v: -1 } }, { $limit: 1 }, { $project: { v: 1, _id: 0 } }] } }]).toArray();
  assert.deepEqual(facets, { n: [{ all: 90 }], top: [{ v: 89 }] });
  await db.collection('o').aggregate([{ $match: { c: 1 } }, { $out: 'copy' }]).toArray();
  assert.equal(await db.collection('copy').countDocuments(), 30);
});

test('errors carry the real codes', async () => {
  await assert.rejects(db.command({ nonsense: 1 }), (e) => e.code === 59 && e.codeName === 'CommandNotFound' && e.message === "no such command: 'nonsense'");
  await assert.rejects(db.collection('x').find({ a: { $bad: 1 } }).toArray(), (e) => e.code === 2 && e.message === 'unknown operator: $bad');
  await assert.rejects(db.collection('x').aggregate([{ $bad: 1 }]).toArray(), (e) => e.code === 40324 && /Unrecognized pipeline stage name: '\$bad'/.test(e.message));
  await assert.rejects(db.command({ getMore: Long.fromNumber(12345), collection: 'x' }), (e) => e.code === 43);
});

test('collections, options and validators', async () => {
  await db.createCollection('v', { validator: { n: { $gt: 0 } } });
  await assert.rejects(db.collection('v').insertOne({ n: 0 }), (e) => e.code === 121);
  await db.collection('v').insertOne({ n: 1 });
  await assert.rejects(db.createCollection('v', { capped: true, size: 4096 }), (e) => e.code === 48);
  await db.collection('v').rename('w');
  assert.deepEqual((await db.listCollections({}, { nameOnly: true }).toArray()).map((c) => c.name), ['w']);
  assert.equal(await db.collection('w').drop(), true);
});

test('GridFS', async () => {
  const bucket = new GridFSBucket(db);
  const data = Buffer.alloc(600000, 'shoal');
  const up = bucket.openUploadStream('file.bin');
  up.end(data);
  await new Promise((ok, bad) => up.on('finish', ok).on('error', bad));
  const parts = [];
  for await (const p of bucket.openDownloadStreamByName('file.bin')) parts.push(p);
  assert.ok(Buffer.concat(parts).equals(data));
});

for (const compressor of ['snappy', 'zlib', 'zstd', 'none']) {
  test(`compression: ${compressor}`, async (t) => {
    let c;
    try {
      c = await new MongoClient(uri, { compressors: [compressor], serverSelectionTimeoutMS: 5000 }).connect();
    } catch (e) {
      if (/optional|Cannot find|not installed|Missing/i.test(e.message)) return t.skip(`the driver has no ${compressor} here`);
      throw e;
    }
    try {
      const coll = c.db('compat_node').collection('z');
      await coll.insertMany(Array.from({ length: 300 }, (_, i) => ({ i, text: 'again and '.repeat(50) })));
      assert.equal((await coll.find().toArray()).length, 300);
    } catch (e) {
      if (/optional|Cannot find|not installed|Missing/i.test(e.message)) return t.skip(`the driver has no ${compressor} here`);
      throw e;
    } finally {
      await c.close();
    }
  });
}

test('a sharded collection answers as one', { skip: process.env.TOPOLOGY !== 'sharded' }, async () => {
  await client.db('admin').command({ enableSharding: 'compat_node' });
  await client.db('admin').command({ shardCollection: 'compat_node.s', key: { _id: 'hashed' } });
  const c = db.collection('s');
  await c.insertMany(Array.from({ length: 1000 }, (_, i) => ({ _id: i, g: i % 4 })));
  assert.equal(await c.countDocuments(), 1000);
  assert.deepEqual((await c.find({ _id: { $gte: 500 } }).sort({ _id: 1 }).limit(3).toArray()).map((d) => d._id), [500, 501, 502]);
  assert.deepEqual(await c.aggregate([{ $group: { _id: '$g', n: { $sum: 1 } } }, { $sort: { _id: 1 } }]).toArray(),
    [0, 1, 2, 3].map((g) => ({ _id: g, n: 250 })));
  assert.equal((await c.updateMany({ g: 1 }, { $set: { h: 1 } })).modifiedCount, 250);
  const shards = new Set((await client.db('config').collection('chunks').find().toArray()).map((x) => x.shard));
  assert.ok(shards.size > 1, `all chunks on ${[...shards]}`);
});
