// A member of the 0.9 rewrite, written from docs/wire-rewrite.md alone: no Kafka library, only sockets.
//
// Arguments: HOST:PORT of a broker, group, topic, session timeout in ms. It writes what happens as lines of JSON, and
// leaves, as the page says, when its stdin ends.
'use strict'

const net = require('node:net')

const [bootstrap, group, topic, sessionText] = process.argv.slice(2)
const sessionMs = Number(sessionText)
const [FETCH, LIST_OFFSETS, METADATA, COMMIT, FETCH_OFFSETS, FIND, JOIN, HEARTBEAT] = [1, 2, 3, 8, 9, 10, 11, 12]
const VERSIONS = { [COMMIT]: 1, [FETCH_OFFSETS]: 1 } // the others have 0
const [STARTUP, UNAVAILABLE, ELSEWHERE, ILLEGAL_GENERATION, UNKNOWN, NOT_YET, FAILED] = [14, 15, 16, 22, 25, 110, 111]
const PAUSE_MS = 200

const tell = (what, more = {}) => process.stdout.write(`${JSON.stringify({ what, ...more })}\n`)
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// ---- bytes

const int = (size) => (value) => {
  const data = Buffer.alloc(size)
  if (size === 8) data.writeBigInt64BE(BigInt(value))
  else data.writeIntBE(value, 0, size)
  return data
}
const [int16, int32, int64] = [int(2), int(4), int(8)]
const string = (value) => Buffer.concat([int16(Buffer.byteLength(value)), Buffer.from(value)])
const list = (items) => Buffer.concat([int32(items.length), ...items])
const ofTopic = (items) => list([Buffer.concat([string(topic), list(items)])]) // of the one topic
const one = (...parts) => Buffer.concat(parts)

class Reader {
  constructor(data) {
    this.data = data
    this.at = 0
  }

  take(size) {
    if (size < 0 || this.at + size > this.data.length) throw new Error('the frame is too short')
    this.at += size
    return this.data.subarray(this.at - size, this.at)
  }

  int16() { return this.take(2).readInt16BE() }
  int32() { return this.take(4).readInt32BE() }
  int64() { return Number(this.take(8).readBigInt64BE()) }
  string() {
    const size = this.int16()
    return size < 0 ? null : this.take(size).toString()
  }

  bytes() {
    const size = this.int32()
    return size < 0 ? null : this.take(size)
  }

  list(read) { return Array.from({ length: this.int32() }, () => read(this)) }
  of(read) { return this.list((r) => [r.string(), r.list(read)]).flatMap(([, items]) => items) }
}

// A connection, on which one request at a time is asked.
class Link {
  constructor(address) {
    const [host, port] = address.split(':')
    this.last = 0
    this.received = Buffer.alloc(0)
    this.ended = null
    this.socket = net.connect(Number(port), host)
    this.socket.on('data', (data) => {
      this.received = Buffer.concat([this.received, data])
      this.wake?.()
    })
    this.socket.on('error', () => {})
    this.socket.on('close', () => {
      this.ended = new Error('the connection has ended')
      this.wake?.()
    })
  }

  async ask(key, body) {
    this.last += 1
    const frame = one(int16(key), int16(VERSIONS[key] ?? 0), int32(this.last), string('node'), body)
    this.socket.write(one(int32(frame.length), frame))
    for (;;) {
      const size = this.received.length < 4 ? Infinity : 4 + this.received.readInt32BE()
      if (this.received.length >= size) {
        const answer = new Reader(this.received.subarray(4, size))
        this.received = this.received.subarray(size)
        if (answer.int32() !== this.last) throw new Error('an answer to another request')
        return answer
      }
      if (this.ended) throw this.ended
      await new Promise((resolve) => { this.wake = resolve })
    }
  }

  close() { this.socket.destroy() }
}

// ---- the member

const state = { generation: -1, id: '', positions: new Map(), committed: new Map(), isJoined: false, leaving: false }
let coordinator = null

async function findCoordinator() {
  const link = new Link(bootstrap)
  try {
    const r = await link.ask(FIND, string(group))
    const [error, , host, port] = [r.int16(), r.int32(), r.string(), r.int32()]
    if (error) throw new Error(`error ${error} to ConsumerMetadata`)
    coordinator = new Link(`${host}:${port}`)
  } finally {
    link.close()
  }
}

async function join() {
  const wanted = one(string(group), int32(sessionMs), list([string(topic)]), string(state.id), string('range'))
  const r = await coordinator.ask(JOIN, wanted)
  const [error, generation, id] = [r.int16(), r.int32(), r.string()]
  if (error) return error
  const partitions = r.of((each) => each.int32())
  Object.assign(state, { generation, id, isJoined: true, positions: new Map(), committed: new Map() })
  const offsets = await coordinator.ask(FETCH_OFFSETS, one(string(group), ofTopic(partitions.map(int32))))
  const found = offsets.of((each) => [each.int32(), each.int64(), each.string(), each.int16()])
  for (const [partition, offset] of found) state.positions.set(partition, offset < 0 ? await oldest(partition) : offset)
  tell('joined', { generation, id, positions: Object.fromEntries(state.positions) })
  return 0
}

async function heartbeat() {
  const r = await coordinator.ask(HEARTBEAT, one(string(group), int32(state.generation), string(state.id)))
  return r.int16()
}

async function commit() {
  const moved = [...state.positions].filter(([partition, offset]) => state.committed.get(partition) !== offset)
  if (!moved.length) return 0
  const offsets = moved.map(([partition, offset]) => one(int32(partition), int64(offset), int64(-1), string('')))
  const who = one(string(group), int32(state.generation), string(state.id))
  const r = await coordinator.ask(COMMIT, one(who, ofTopic(offsets)))
  const errors = r.of((each) => [each.int32(), each.int16()]).map(([, error]) => error)
  if (Math.max(...errors) === 0) {
    for (const [partition, offset] of moved) state.committed.set(partition, offset)
    tell('committed', { positions: Object.fromEntries(state.committed) })
  }
  return Math.max(...errors)
}

// ---- fetching, on one connection, from the broker that leads all

let leader = null

async function asked(key, body) {
  if (!leader) {
    const link = new Link(bootstrap)
    const r = await link.ask(METADATA, list([string(topic)]))
    const brokers = new Map(r.list((each) => [each.int32(), `${each.string()}:${each.int32()}`]))
    const leaders = r.list((each) => {
      each.int16()
      each.string()
      return each.list((p) => [p.int16(), p.int32(), p.int32(), p.list((n) => n.int32()), p.list((n) => n.int32())][2])
    })
    link.close()
    leader = new Link(brokers.get(leaders[0][0]))
  }
  return leader.ask(key, body)
}

async function oldest(partition) {
  const r = await asked(LIST_OFFSETS, one(int32(-1), ofTopic([one(int32(partition), int64(-2), int32(1))])))
  return r.of((each) => [each.int32(), each.int16(), each.list((n) => n.int64())])[0][2][0]
}

async function fetch() {
  const wanted = [...state.positions].map(([partition, offset]) => one(int32(partition), int64(offset), int32(4096)))
  const r = await asked(FETCH, one(int32(-1), int32(100), int32(1), ofTopic(wanted)))
  for (const [partition, error, , set] of r.of((each) => [each.int32(), each.int16(), each.int64(), each.bytes()])) {
    if (error) throw new Error(`error ${error} to Fetch`)
    const messages = new Reader(set)
    const [offset, values] = [state.positions.get(partition), []]
    while (messages.at < set.length) {
      const at = messages.int64()
      const message = new Reader(messages.bytes())
      message.take(6) // CRC, magic, attributes
      message.bytes()
      values.push(message.bytes().toString())
      state.positions.set(partition, at + 1)
    }
    if (values.length) tell('records', { partition, offset, values })
  }
}

// ---- its life

async function step() {
  if (!coordinator) await findCoordinator()
  if (!state.isJoined) {
    const error = await join()
    if (error === UNKNOWN) state.id = ''
    if (error && ![UNKNOWN, FAILED].includes(error)) throw new Error(`error ${error} to JoinGroup`)
    state.nextHeartbeat = 0
    return
  }
  if (Date.now() >= state.nextHeartbeat) {
    const error = await heartbeat()
    tell('heartbeat', { error })
    state.nextHeartbeat = Date.now() + 0.3 * sessionMs
    if (error === ILLEGAL_GENERATION) await commit() // what is fetched is processed: nothing runs meanwhile
    if (error === UNKNOWN) state.id = ''
    if ([ILLEGAL_GENERATION, UNKNOWN].includes(error)) state.isJoined = false
    else if (error) throw new Error(`error ${error} to Heartbeat`)
    return
  }
  if (state.positions.size) await fetch()
  await pause(PAUSE_MS)
}

process.stdin.on('end', () => { state.leaving = true }).resume()

;(async () => {
  while (!state.leaving) {
    try {
      await step()
    } catch (error) {
      tell('failed', { error: error.message })
      if (![STARTUP, UNAVAILABLE, ELSEWHERE, NOT_YET].some((code) => error.message.startsWith(`error ${code} `))) {
        leader?.close()
        leader = null
      }
      coordinator?.close()
      coordinator = null
      await pause(PAUSE_MS)
    }
  }
  if (state.isJoined && coordinator) await commit()
  process.exit(0)
})()
