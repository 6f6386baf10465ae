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
  assert(db.adminCommand({ moveChunk: 'compat_shards.r', find: { k: 150 }, to: other._id }).ok === 1, 'moveChunk');
  assert(t.r.countDocuments({}) === 200, 'all documents after the move');
  assert(t.r.find({ k: { $gte: 98, $lt: 102 } }).sort({ k: 1 }).toArray().map((d) => d.k).join() === '98,99,100,101', 'a range over both shards');
  sh.status();

  // Another key, one shard, another shard, as the helpers do it.
  const spread = () => {
    const all = t.r.getShardDistribution();
    return (all.Totals ? all : all.value).Totals.docs;
  };
  assert(spread() === 200, 'getShardDistribution');
  assert(sh.reshardCollection('compat_shards.r', { h: 'hashed' }, { numInitialChunks: 4 }).ok === 1, 'reshardCollection');
  assert(EJSON.stringify(conf.collections.findOne({ _id: 'compat_shards.r' }).key) === '{"h":"hashed"}', 'the new key');
  assert(spread() === 200, 'all documents after the resharding');
  assert(sh.unshardCollection('compat_shards.r', other._id).ok === 1, 'unshardCollection');
  assert(conf.collections.findOne({ _id: 'compat_shards.r' }).unsplittable === true, 'an unsharded collection');
  const first = conf.shards.find().toArray().find((s) => s._id !== other._id);
  assert(sh.moveCollection('compat_shards.r', first._id).ok === 1, 'moveCollection');
  const home = conf.chunks.find({ uuid: conf.collections.findOne({ _id: 'compat_shards.r' }).uuid }).toArray();
  assert(home.length === 1 && home[0].shard === first._id, 'one chunk, on the shard that was named');
  assert(t.r.countDocuments({}) === 200, 'all documents after the moves');
  sh.status();
  assert(db.adminCommand({ listShards: 1 }).shards.length >= 2, 'listShards');
  t.dropDatabase();
  print('mongosh sharding: ok');
}
