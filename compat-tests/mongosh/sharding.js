// A cluster as its operator sees it; a replica set has none of it.
const assert = (ok, what) => { if (!ok) throw new Error('check failed: ' + what); };
if (db.hello().msg !== 'isdbgrid') {
  print('mongosh sharding: not a router, nothing to check');
} else {
  const t = db.getSiblingDB('compat_shards');
  t.dropDatabase();
  assert(sh.enableSharding('compat_shards').ok === 1, 'enableSharding');
  assert(sh.shardCollection('compat_shards.r', { k: 1 }).ok === 1, 'shardCollection');
  const docs = [];
  for (let i = 0; i < 200; i++) docs.push({ k: i });
  t.r.insertMany(docs);
  assert(sh.splitAt('compat_shards.r', { k: 100 }).ok === 1, 'splitAt');
  const conf = db.getSiblingDB('config');
  const uuid = conf.collections.findOne({ _id: 'compat_shards.r' }).uuid;
  const chunks = conf.chunks.find({ uuid }).sort({ min: 1 }).toArray();
  assert(chunks.length === 2, `two chunks, not ${chunks.length}`);
  const other = conf.shards.find().toArray().find((s) => s._id !== chunks[1].shard);
  assert(db.adminCommand({ moveChunk: 'compat_shards.r', find: { k: 150 }, to: other._id, _waitForDelete: true }).ok === 1, 'moveChunk');
  assert(t.r.countDocuments({}) === 200, 'all documents after the move');
  assert(t.r.find({ k: { $gte: 98, $lt: 102 } }).sort({ k: 1 }).toArray().map((d) => d.k).join() === '98,99,100,101', 'a range over both shards');
  const spread = t.r.getShardDistribution().value;
  const placed = Object.keys(spread).filter((k) => k.startsWith('Shard ')).map((k) => spread[k].docs);
  assert(placed.length === 2 && placed.reduce((a, b) => a + b) === 200, `getShardDistribution counts 200 documents on two shards, not ${placed}`);
  assert(spread.Totals.docs === 200, `the totals of getShardDistribution: ${JSON.stringify(spread.Totals)}`);

  // the collection by another key, and its former one again
  const keyOf = (name) => conf.collections.findOne({ _id: 'compat_shards.' + name });
  assert(sh.reshardCollection('compat_shards.r', { g: 'hashed' }, { numInitialChunks: 4 }).ok === 1, 'reshardCollection');
  assert(JSON.stringify(keyOf('r').key) === '{"g":"hashed"}', `the key after resharding is ${JSON.stringify(keyOf('r').key)}`);
  assert(sh.reshardCollection('compat_shards.r', { k: 1 }).ok === 1, 'reshardCollection back');
  assert(t.r.countDocuments({}) === 200, 'all documents after resharding');

  // an unsharded collection is moved, and moved by movePrimary where it is not; a sharded one becomes unsharded
  t.u.insertMany(docs.slice(0, 50).map(({ k }) => ({ k })));
  const home = conf.databases.findOne({ _id: 'compat_shards' }).primary;
  const away = conf.shards.find().toArray().find((s) => s._id !== home)._id;
  assert(sh.moveCollection('compat_shards.u', away).ok === 1, 'moveCollection');
  assert(keyOf('u').unsplittable === true, 'a moved collection is in the catalog, unsplittable');
  assert(conf.chunks.find({ uuid: keyOf('u').uuid }).toArray().map((c) => c.shard).join() === away, 'the moved collection is on one shard');
  assert(sh.moveCollection('compat_shards.u', home).ok === 1, 'moveCollection back');
  assert(sh.unshardCollection('compat_shards.r', away).ok === 1, 'unshardCollection');
  assert(keyOf('r').unsplittable === true, 'the collection is unsharded');
  t.plain.insertOne({ _id: 1 });
  assert(db.adminCommand({ movePrimary: 'compat_shards', to: away }).ok === 1, 'movePrimary');
  assert(conf.databases.findOne({ _id: 'compat_shards' }).primary === away, 'the primary after movePrimary');
  assert(t.r.countDocuments({}) === 200 && t.u.countDocuments({}) === 50 && t.plain.countDocuments({}) === 1, 'all documents after the moves');
  const wrong = t.checkMetadataConsistency().toArray();
  assert(wrong.length === 0, `checkMetadataConsistency finds ${JSON.stringify(wrong)}`);

  // the balancer and zones by their helpers
  assert(sh.stopBalancer().ok === 1 && sh.getBalancerState() === false, 'stopBalancer');
  assert(sh.startBalancer().ok === 1 && sh.getBalancerState() === true, 'startBalancer');
  assert(sh.addShardToZone(home, 'compat').ok === 1, 'addShardToZone');
  assert(sh.updateZoneKeyRange('compat_shards.z', { k: 0 }, { k: 10 }, 'compat').ok === 1, 'updateZoneKeyRange');
  assert(sh.shardCollection('compat_shards.z', { k: 1 }).ok === 1, 'shardCollection with a zone');
  const zoned = conf.chunks.findOne({ uuid: keyOf('z').uuid, min: { k: 0 } });
  assert(zoned && zoned.shard === home, `the chunk of the zone is on its shard: ${JSON.stringify(zoned)}`);
  assert(sh.removeRangeFromZone('compat_shards.z', { k: 0 }, { k: 10 }).ok === 1, 'removeRangeFromZone');
  assert(sh.removeShardFromZone(home, 'compat').ok === 1, 'removeShardFromZone');
  assert(sh.balancerCollectionStatus('compat_shards.z').ok === 1, 'balancerCollectionStatus');

  const status = sh.status();
  const shown = status.value.databases.find((d) => d.database._id === 'compat_shards');
  assert(shown.database.primary === away && 'compat_shards.z' in shown.collections, `sh.status shows the database: ${JSON.stringify(shown)}`);
  assert(db.adminCommand({ listShards: 1 }).shards.length >= 2, 'listShards');
  t.dropDatabase();
  print('mongosh sharding: ok');
}
