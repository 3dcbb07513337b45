// A member by kafkajs. It speaks the line protocol of tests/support/clients/lines.py.
'use strict'

const readline = require('node:readline')
const { Kafka, PartitionAssigners, logLevel } = require('kafkajs')

const settings = JSON.parse(process.argv[2])
const assigners = { RoundRobinAssigner: PartitionAssigners.roundRobin }
const levels = { [logLevel.ERROR]: 'error', [logLevel.WARN]: 'warning' }

const tell = (event, fields = {}) => process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`)

const kafka = new Kafka({
  clientId: settings.client_id,
  brokers: [settings.bootstrap],
  logLevel: logLevel.WARN,
  logCreator: () => ({ namespace, level, log }) => {
    const { message, error } = log
    tell('log', { level: levels[level] ?? 'error', text: `${namespace}: ${message}${error ? `: ${error}` : ''}` })
  },
})

const next = new Map() // partition -> offset behind the last record told
let owned = []
let consumer
let waits = 0 // ms that the next message takes

function own(partitions) {
  owned = partitions
  for (const partition of next.keys()) if (!owned.includes(partition)) next.delete(partition)
  tell('owns', { partitions })
}

const doing = {
  async join() {
    consumer = kafka.consumer({
      groupId: settings.group,
      partitionAssigners: [assigners[settings.assignor]],
      sessionTimeout: settings.session_timeout_ms,
      heartbeatInterval: settings.heartbeat_interval_ms,
      rebalanceTimeout: settings.rebalance_timeout_ms,
      maxWaitTimeInMs: settings.heartbeat_interval_ms, // it sends heartbeats between fetches, not beside them
    })
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => own(payload.memberAssignment[settings.topic] ?? []))
    consumer.on(consumer.events.REBALANCING, () => own([]))
    consumer.on(consumer.events.CRASH, ({ payload }) => tell('log', { level: 'error', text: `crash: ${payload.error}` }))
    await consumer.connect()
    await consumer.subscribe({ topic: settings.topic, fromBeginning: true })
    // Not awaited: it ends with the first join, which is told by the event above.
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        const offset = Number(message.offset)
        const ms = waits
        waits = 0
        if (ms) await new Promise(resolve => setTimeout(resolve, ms))
        if (owned.includes(partition)) next.set(partition, offset + 1)
        tell('records', { records: [[partition, offset, message.value.toString()]] })
      },
    }).catch(error => tell('log', { level: 'error', text: `run: ${error}` }))
  },

  async produce({ records }) {
    const producer = kafka.producer({ idempotent: true })
    await producer.connect()
    const sent = []
    for (const [partition, value] of records) {
      const [{ baseOffset }] = await producer.send({ topic: settings.topic, messages: [{ partition, value }], acks: -1 })
      sent.push([partition, Number(baseOffset), value])
    }
    await producer.disconnect()
    return { records: sent }
  },

  async commit() {
    const offsets = [...next].sort(([a], [b]) => a - b)
    await consumer.commitOffsets(
      offsets.map(([partition, offset]) => ({ topic: settings.topic, partition, offset: String(offset) }))
    )
    return { offsets }
  },

  async stall({ ms, blocks }) {
    if (!blocks) {
      waits = ms
      return
    }
    const end = Date.now() + ms
    while (Date.now() < end);
  },

  async leave() {
    await consumer.disconnect()
  },
}

async function serve() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line)
    try {
      tell(command.do, await doing[command.do](command))
    } catch (error) {
      tell('failed', { do: command.do, text: String(error) })
    }
  }
  process.exit(0)
}

serve()
