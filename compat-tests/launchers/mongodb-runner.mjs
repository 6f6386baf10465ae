// mongodb-runner: a lone server, a set of three, a sharded cluster.
import assert from 'node:assert'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { MongoClient } from 'mongodb'
import { MongoCluster } from 'mongodb-runner'

const checks = {
  standalone: (hello) => assert.equal(hello.setName, undefined),
  replset: (hello) => assert.equal(hello.hosts.length + (hello.passives ?? []).length, 3),
  sharded: (hello) => assert.equal(hello.msg, 'isdbgrid'),
}
for (const topology of Object.keys(checks)) {
  const folder = await mkdtemp(path.join(tmpdir(), 'runner-'))
  const cluster = await MongoCluster.start({ topology, secondaries: topology === 'sharded' ? 0 : 2, shards: 2, tmpDir: folder, binDir: process.env.SHOAL_BIN })
  const client = await MongoClient.connect(cluster.connectionString)
  const c = client.db('launched').collection('c')
  await c.insertOne({ n: 1 })
  assert.equal(await c.countDocuments({ n: 1 }), 1)
  checks[topology](await client.db('admin').command({ hello: 1 }))
  await client.close()
  await cluster.close()
  await rm(folder, { recursive: true, force: true })
  console.log(`mongodb-runner ${topology}: ok`)
}
