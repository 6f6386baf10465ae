// mongodb-runner: a lone server, a set of three, a sharded cluster; and a set and a cluster with a user, a key file and TLS.
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
async function launch(topology, options, check) {
  const folder = await mkdtemp(path.join(tmpdir(), 'runner-'))
  const members = { topology, secondaries: topology === 'sharded' ? 0 : 2, shards: 2, tmpDir: folder, binDir: process.env.SHOAL_BIN }
  const cluster = await MongoCluster.start({ ...members, ...options })
  const client = await MongoClient.connect(cluster.connectionString, options.internalClientOptions)
  const c = client.db('launched').collection('c')
  await c.insertOne({ n: 1 })
  assert.equal(await c.countDocuments({ n: 1 }), 1)
  checks[topology](await client.db('admin').command({ hello: 1 }))
  await client.close()
  await check?.(cluster)
  await cluster.close()
  await rm(folder, { recursive: true, force: true })
}

for (const topology of Object.keys(checks)) {
  await launch(topology, {})
  console.log(`mongodb-runner ${topology}: ok`)
}

const secret = (name) => path.join(process.env.SHOAL_SECRETS, name)
const tls = { tls: true, tlsCAFile: secret('ca.pem'), tlsCertificateKeyFile: secret('client.pem') }
const secured = {
  users: [{ username: 'root', password: 'secret', roles: ['root'] }],
  args: ['--keyFile', secret('key'), '--tlsMode', 'requireTLS', '--tlsCertificateKeyFile', secret('server.pem'), '--tlsCAFile', secret('ca.pem')],
  internalClientOptions: tls,
}
for (const topology of ['replset', 'sharded']) {
  await launch(topology, secured, async (cluster) => {
    const stranger = await MongoClient.connect(`mongodb://${cluster.hostport}`, tls)
    await assert.rejects(stranger.db('launched').collection('c').findOne({}), { code: 13 })
    await stranger.close()
    await assert.rejects(MongoClient.connect(`mongodb://${cluster.hostport}`, { serverSelectionTimeoutMS: 500 }))
  })
  console.log(`mongodb-runner secured ${topology}: ok`)
}
