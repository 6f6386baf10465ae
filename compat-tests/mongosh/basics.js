// What people type first. Run by mongosh against MONGODB_URI; a failed check ends it with an error.
const assert = (ok, what) => { if (!ok) throw new Error('check failed: ' + what); };
const same = (got, want, what) => assert(EJSON.stringify(got) === EJSON.stringify(want), `${what}: got ${EJSON.stringify(got)}, want ${EJSON.stringify(want)}`);
const code = (f) => { try { f(); } catch (e) { return e.code; } return 0; };

const t = db.getSiblingDB('compat_mongosh');
t.dropDatabase();

same(t.people.insertOne({ _id: 1, name: 'Ada', langs: ['a', 'b'] }).acknowledged, true, 'insertOne');
same(t.people.insertMany([{ _id: 2, name: 'Bob' }, { _id: 3, name: 'Cyd', age: 7 }]).insertedIds, { 0: 2, 1: 3 }, 'insertMany');
same(t.people.find({ name: /^[AC]/ }).sort({ _id: -1 }).toArray().map((d) => d.name), ['Cyd', 'Ada'], 'find by a pattern');
same(t.people.updateOne({ _id: 3 }, { $inc: { age: 1 } }).modifiedCount, 1, 'updateOne');
same(t.people.findOne({ age: { $gt: 7 } })._id, 3, 'findOne');
same(t.people.countDocuments({}), 3, 'countDocuments');
same(code(() => t.people.insertOne({ _id: 1 })), 11000, 'duplicate key');
same(t.people.createIndex({ name: 1 }), 'name_1', 'createIndex');
same(t.people.getIndexes().map((i) => i.name), ['_id_', 'name_1'], 'getIndexes');
assert(/IXSCAN/.test(EJSON.stringify(t.people.find({ name: 'Bob' }).explain())), 'explain shows the index');
same(t.people.aggregate([{ $unwind: '$langs' }, { $group: { _id: '$langs' } }, { $sort: { _id: 1 } }]).toArray(), [{ _id: 'a' }, { _id: 'b' }], 'aggregate');
same(t.people.distinct('name').sort(), ['Ada', 'Bob', 'Cyd'], 'distinct');
same(t.people.deleteOne({ _id: 1 }).deletedCount, 1, 'deleteOne');
same(t.getCollectionNames(), ['people'], 'show collections');
assert(db.adminCommand({ listDatabases: 1 }).databases.some((d) => d.name === 'compat_mongosh'), 'show dbs');
assert(db.version().startsWith('8.2'), 'db.version');
assert(db.hello().maxWireVersion === 27, 'hello');
assert(db.adminCommand({ getLog: 'startupWarnings' }).ok === 1, 'getLog');
assert(Number(t.people.stats().count) === 2, 'collection stats');
assert(Number(t.stats().collections) === 1, 'database stats');
assert(db.serverStatus().connections.current > 0, 'serverStatus');
same(t.runCommand({ ping: 1 }).ok, 1, 'ping');
t.dropDatabase();
print('mongosh basics: ok');
