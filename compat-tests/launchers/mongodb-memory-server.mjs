// mongodb-memory-server: one server, and a set of three.
import assert from 'node:assert'
import { MongoClient } from 'mongodb'
import { MongoMemoryReplSet, MongoMemoryServer } from 'mongodb-memory-server-core'

async function use(uri, check) {
  const client = await MongoClient.connect(uri)
  const c = client.db('launched').collection('c')
  await c.insertOne({ n: 1 })
  assert.equal(await c.countDocuments({ n: 1 }), 1)
  check(await client.db('admin').command({ hello: 1 }))
  await client.close()
}

const one = await MongoMemoryServer.create()
await use(one.getUri(), (hello) => assert.equal(hello.isWritablePrimary, true))
await one.stop()
console.log('mongodb-memory-server one: ok')

const set = await MongoMemoryReplSet.create({ replSet: { count: 3 } })
await use(set.getUri(), (hello) => assert.equal(hello.hosts.length, 3))
await set.stop()
console.log('mongodb-memory-server set of three: ok')
