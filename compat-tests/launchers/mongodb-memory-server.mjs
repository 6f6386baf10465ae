// mongodb-memory-server: one server, a set of three, and a set with a user, a key file and TLS. Its own connections are plain, so the servers take
// both kinds; members use TLS among themselves.
import assert from 'node:assert'
import path from 'node:path'
import { MongoClient } from 'mongodb'
import { MongoMemoryReplSet, MongoMemoryServer } from 'mongodb-memory-server-core'

async function use(uri, check, options) {
  const client = await MongoClient.connect(uri, options)
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

const secret = (name) => path.join(process.env.SHOAL_SECRETS, name)
const guarded = await MongoMemoryReplSet.create({ replSet: {
  count: 2, auth: { enable: true, customRootName: 'root', customRootPwd: 'secret' },
  args: ['--tlsMode', 'preferTLS', '--tlsCertificateKeyFile', secret('server.pem'), '--tlsCAFile', secret('ca.pem'), '--tlsAllowConnectionsWithoutCertificates'],
} })
const tls = { tls: true, tlsCAFile: secret('ca.pem') }
await use(guarded.getUri().replace('mongodb://', 'mongodb://root:secret@') + '&authSource=admin', (hello) => assert.equal(hello.hosts.length, 2), tls)
for (const options of [{}, tls]) {
  const stranger = await MongoClient.connect(guarded.getUri(), options)
  await assert.rejects(stranger.db('launched').collection('c').findOne({}), { code: 13 })
  await stranger.close()
}
await guarded.stop()
console.log('mongodb-memory-server guarded: ok')
