// A consumer of the 0.8 draft, written from docs/wire-draft.md alone: no packages, only sockets.
//
//   node draft.js --brokers HOST:PORT[,HOST:PORT...] --group G --consumer C --topics '{"orders":1}'
//        [--session-timeout 6000] [--reset smallest|largest] [--no-auto-commit] [--extensions]
//
// It writes what happens as lines of JSON, and leaves, as the page says, when its stdin ends. --extensions sends
// `groups` and `fence`.
'use strict';

const net = require('node:net');
const { parseArgs } = require('node:util');

const FETCH = 1;
const CLUSTER_METADATA = 5;
const REGISTER_CONSUMER = 6;
const PING = 7;
const STOP_FETCHER = 8;
const START_FETCHER = 9;

const NONE = 0;
const OFFSET_OUT_OF_RANGE = 1;
const UNKNOWN_TOPIC_OR_PARTITION = 3;
const STALE_EPOCH = 102;
const UNKNOWN_CONSUMER_ID = 103;
// The same request would be refused again: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INVALID_TOPIC_COUNT,
// INVALID_CONSUMER_ID, INVALID_OFFSET_RESET.
const FINAL_ERRORS = new Set([24, 26, 101, 104, 105]);

const RESET_OFFSETS = { smallest: -2n, largest: -1n };
const MAX_FRAME = 16 * 1024 * 1024;
const BEGIN_EVERY_MS = 500;
const IDLE_FETCH_MS = 50;
const FIRST_FETCH_BYTES = 64 * 1024;

const { values: options } = parseArgs({
  options: {
    brokers: { type: 'string' },
    group: { type: 'string' },
    consumer: { type: 'string' },
    topics: { type: 'string' },
    'session-timeout': { type: 'string', default: '6000' },
    reset: { type: 'string', default: 'smallest' },
    'no-auto-commit': { type: 'boolean', default: false },
    extensions: { type: 'boolean', default: false },
  },
});
const sessionTimeoutMs = Number(options['session-timeout']);
const autoCommit = !options['no-auto-commit'];
const bootstrap = options.brokers.split(',').map((address) => {
  const colon = address.lastIndexOf(':');
  return { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) };
});

const emit = (what, fields = {}) => process.stdout.write(`${JSON.stringify({ what, ...fields })}\n`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, Math.max(0, ms)));

class ProtocolError extends Error {}

// ---- bytes -------------------------------------------------------------------------------------------------------------

class Writer {
  constructor() {
    this.parts = [];
  }
  number(size, write) {
    const part = Buffer.alloc(size);
    write(part);
    this.parts.push(part);
    return this;
  }
  int16(value) {
    return this.number(2, (part) => part.writeInt16BE(value));
  }
  int32(value) {
    return this.number(4, (part) => part.writeInt32BE(value));
  }
  int64(value) {
    return this.number(8, (part) => part.writeBigInt64BE(value));
  }
  bool(value) {
    return this.number(1, (part) => part.writeInt8(value ? 1 : 0));
  }
  string(value) {
    const text = Buffer.from(value, 'utf8');
    this.int16(text.length).parts.push(text);
    return this;
  }
  list(elements, write) {
    this.int16(elements.length);
    for (const element of elements) write(this, element);
    return this;
  }
  frame() {
    const body = Buffer.concat(this.parts);
    const size = Buffer.alloc(4);
    size.writeInt32BE(body.length);
    return Buffer.concat([size, body]);
  }
}

class Reader {
  constructor(body) {
    this.body = body;
    this.place = 0;
  }
  take(size) {
    if (size < 0 || this.place + size > this.body.length) throw new ProtocolError('a frame ends within a field');
    this.place += size;
    return this.body.subarray(this.place - size, this.place);
  }
  int16() {
    return this.take(2).readInt16BE();
  }
  int32() {
    return this.take(4).readInt32BE();
  }
  int64() {
    return this.take(8).readBigInt64BE();
  }
  string() {
    return this.take(this.int16()).toString('utf8');
  }
  bytes() {
    return this.take(this.int32());
  }
  list(read) {
    const count = this.int16();
    if (count < 0) throw new ProtocolError(`a list of ${count} elements`);
    return Array.from({ length: count }, () => read(this));
  }
  // The last field of a message may be absent, which is not the same as empty.
  optionalList(read) {
    return this.place === this.body.length ? null : this.list(read);
  }
  end(value) {
    if (this.place !== this.body.length) throw new ProtocolError('bytes behind the last field');
    return value;
  }
}

const readBroker = (r) => ({ id: r.int32(), host: r.string(), port: r.int32() });
const readPartition = (r) => ({ topic: r.string(), partition: r.string(), offset: r.int64() });
const readOwnership = (r) => ({ thread: r.string(), partitions: r.list(readPartition) });
const readFence = (r) => ({ epoch: r.int32(), generation: r.int32() });
const readRecord = (r) => ({ offset: r.int64(), payload: r.bytes() });

// ---- a connection ------------------------------------------------------------------------------------------------------

// TCP keeps no bounds: a chunk may have half a frame or several. The frames wait here for next().
class Connection {
  constructor(socket) {
    this.socket = socket;
    this.pending = Buffer.alloc(0);
    this.frames = [];
    this.waiter = null;
    this.failure = null;
    socket.setNoDelay(true);
    socket.on('data', (chunk) => this.received(chunk));
    socket.on('error', (error) => this.fail(error));
    socket.on('close', () => this.fail(new Error('the connection was closed')));
  }

  static open({ host, port }) {
    return new Promise((resolve, reject) => {
      const socket = net.connect({ host, port });
      const timer = setTimeout(() => socket.destroy(new Error('no connection in time')), sessionTimeoutMs);
      socket.once('error', reject);
      socket.once('connect', () => {
        clearTimeout(timer);
        socket.off('error', reject);
        resolve(new Connection(socket));
      });
    });
  }

  received(chunk) {
    this.pending = this.pending.length ? Buffer.concat([this.pending, chunk]) : chunk;
    while (this.pending.length >= 4) {
      const size = this.pending.readInt32BE();
      if (size < 0 || size > MAX_FRAME) {
        this.fail(new ProtocolError(`a frame of ${size} bytes`));
        return;
      }
      if (this.pending.length < 4 + size) break;
      this.frames.push(this.pending.subarray(4, 4 + size));
      this.pending = this.pending.subarray(4 + size);
    }
    this.wake();
  }

  fail(error) {
    this.failure ??= error;
    this.socket.destroy();
    this.wake();
  }

  wake() {
    if (this.waiter === null || (this.frames.length === 0 && this.failure === null)) return;
    const { resolve, reject, timer } = this.waiter;
    this.waiter = null;
    clearTimeout(timer);
    if (this.frames.length > 0) resolve(new Reader(this.frames.shift()));
    else reject(this.failure);
  }

  next(timeoutMs) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.fail(new Error(`nothing came for ${timeoutMs} ms`)), timeoutMs);
      this.waiter = { resolve, reject, timer };
      this.wake();
    });
  }

  send(writer) {
    this.socket.write(writer.frame());
  }

  ask(writer, timeoutMs) {
    this.send(writer);
    return this.next(timeoutMs);
  }

  // What was sent before is still delivered.
  close() {
    this.failure ??= new Error('closed');
    this.socket.end();
    this.socket.setTimeout(BEGIN_EVERY_MS, () => this.socket.destroy());
    this.wake();
  }
}

// ---- fetchers ----------------------------------------------------------------------------------------------------------

const key = (topic, partition) => `${topic}/${partition}`;
const positionsOf = (partitions) =>
  Object.fromEntries(partitions.map(({ topic, partition, offset }) => [key(topic, partition), Number(offset)]));

// What one StartFetcher (or one answer to RegisterConsumer) gave, and the position in each partition.
class Assignment {
  constructor(partitions, brokers, fence, restarts, end) {
    this.brokers = new Map(brokers.map((broker) => [broker.id, broker]));
    this.fence = fence;
    this.end = end;
    this.running = true;
    this.connections = new Set();
    this.positions = new Map();
    const byBroker = new Map();
    for (const { topic, partition, offset } of partitions) {
      const name = key(topic, partition);
      const hyphen = partition.indexOf('-');
      const brokerId = Number(partition.slice(0, hyphen));
      const fetched = {
        topic,
        partition,
        number: Number(partition.slice(hyphen + 1)),
        // An offset that was out of range is committed until another one is reported, and is not tried again.
        offset: restarts.get(name) === offset ? RESET_OFFSETS[options.reset] : offset,
        maxSize: FIRST_FETCH_BYTES,
      };
      this.positions.set(name, fetched);
      byBroker.set(brokerId, [...(byBroker.get(brokerId) ?? []), fetched]);
    }
    for (const [brokerId, fetched] of byBroker) this.run(brokerId, fetched);
  }

  // A position that is not known yet is left out.
  offsets() {
    return [...this.positions.values()].filter(({ offset }) => offset >= 0n);
  }

  stop() {
    this.running = false;
    for (const connection of this.connections) connection.close();
  }

  async run(brokerId, fetched) {
    while (this.running) {
      let connection = null;
      try {
        const broker = this.brokers.get(brokerId);
        if (broker === undefined) throw new Error(`broker ${brokerId} is not listed`);
        connection = await Connection.open(broker);
        this.connections.add(connection);
        while (this.running) {
          let any = false;
          for (const one of fetched) any = (await this.fetch(connection, one)) || any;
          if (!any) await sleep(IDLE_FETCH_MS);
        }
      } catch (error) {
        if (this.running) emit('not fetched', { broker: brokerId, reason: error.message });
      } finally {
        if (connection !== null) {
          this.connections.delete(connection);
          connection.close();
        }
      }
      if (this.running) await sleep(BEGIN_EVERY_MS);
    }
  }

  // Whether there may be more at once.
  async fetch(connection, one) {
    const request = new Writer().int16(FETCH).string(one.topic).int32(one.number).int64(one.offset).int32(one.maxSize);
    if (this.fence !== null) {
      request.list([this.fence], (w, { epoch, generation }) =>
        w.string(options.group).string(options.consumer).int32(epoch).int32(generation),
      );
    }
    const r = await connection.ask(request, sessionTimeoutMs);
    const answer = { error: r.int16(), first: r.int64(), end: r.int64(), records: r.list(readRecord) };
    r.end();
    if (!this.running) return false;
    if (answer.error === OFFSET_OUT_OF_RANGE) return this.reset(one, answer);
    if (answer.error === UNKNOWN_TOPIC_OR_PARTITION) return false;
    if (answer.error === STALE_EPOCH) {
      this.stop();
      this.end('the partition is of another consumer', null);
      return false;
    }
    if (answer.error !== NONE) throw new Error(`error ${answer.error}`);
    if (answer.records.length > 0) {
      const values = answer.records.map(({ payload }) => payload.toString('utf8'));
      emit('records', { partition: key(one.topic, one.partition), values });
      one.offset = answer.records.at(-1).offset + 1n;
    }
    if (answer.records.length === 0 && one.offset < answer.end) {
      if (one.maxSize >= MAX_FRAME / 2) throw new Error(`the record ${one.offset} is too large`);
      one.maxSize *= 2;
      return true;
    }
    return answer.records.length > 0;
  }

  reset(one, { first, end }) {
    if (one.offset >= 0n) {
      emit('out of range', { positions: positionsOf([one]) });
      this.stop();
      this.end('an offset is out of range', one);
      return false;
    }
    one.offset = one.offset === -1n ? end : first;
    return true;
  }
}

// ---- the consumer ------------------------------------------------------------------------------------------------------

class Consumer {
  constructor() {
    this.turn = 0;
    this.seen = null; // the highest fence
    this.restarts = new Map(); // by partition: the offset that was out of range
    this.assignment = null;
    this.connection = null;
    this.registered = false;
    this.leaving = false;
    this.reportedAtLeaving = false;
    this.done = false;
  }

  async run() {
    while (!this.done) {
      const began = Date.now();
      try {
        await this.membership();
      } catch (error) {
        if (!this.done) emit('lost', { reason: error.message });
      } finally {
        this.stopFetching();
        this.registered = false;
        this.connection?.close();
        this.connection = null;
      }
      if (this.leaving) this.done = true;
      if (!this.done) await sleep(began + BEGIN_EVERY_MS - Date.now());
    }
    emit('left');
  }

  leave() {
    this.leaving = true;
    if (!this.registered) this.done = true;
    if (!this.registered) this.connection?.close();
  }

  stopFetching() {
    this.assignment?.stop();
    this.assignment = null;
  }

  async membership() {
    const broker = bootstrap[this.turn++ % bootstrap.length];
    const { coordinator, brokers } = await this.findCoordinator(broker);
    if (coordinator === undefined) return;
    this.connection = await Connection.open(coordinator);
    const r = await this.connection.ask(this.registration(), 2 * sessionTimeoutMs);
    const code = r.int16();
    const ownership = r.end(r.optionalList(readOwnership));
    if (code !== NONE) {
      emit('refused', { error: code });
      this.done = FINAL_ERRORS.has(code);
      if (this.done) process.exitCode = 1;
      return;
    }
    this.registered = true;
    emit('registered', { coordinator: coordinator.id });
    if (ownership !== null) this.startFetching(ownership, brokers, null);
    while (await this.answer(await this.connection.next(sessionTimeoutMs)));
  }

  async findCoordinator(broker) {
    const connection = await Connection.open(broker);
    try {
      const request = new Writer().int16(CLUSTER_METADATA);
      if (options.extensions) request.list([options.group], (w, group) => w.string(group));
      const r = await connection.ask(request, sessionTimeoutMs);
      const code = r.int16();
      const id = r.int32();
      const brokers = r.end(r.list(readBroker));
      return { coordinator: code === NONE ? brokers.find((one) => one.id === id) : undefined, brokers };
    } finally {
      connection.close();
    }
  }

  registration() {
    const request = new Writer()
      .int16(REGISTER_CONSUMER)
      .string(options.group)
      .string(options.consumer)
      .string(options.topics)
      .bool(autoCommit)
      .string(options.reset)
      .int32(sessionTimeoutMs);
    if (options.extensions) {
      request.list(this.seen === null ? [] : [this.seen], (w, { epoch, generation }) => w.int32(epoch).int32(generation));
    }
    return request;
  }

  // Answers one request of the coordinator; false when the consumer has to close the connection.
  async answer(r) {
    const type = r.int16();
    if (![PING, STOP_FETCHER, START_FETCHER].includes(type)) throw new ProtocolError(`a request of type ${type}`);
    const consumer = r.string();
    const retries = type === PING ? r.int32() : 0;
    const ownership = type === START_FETCHER ? r.list(readOwnership) : null;
    const brokers = type === START_FETCHER ? r.list(readBroker) : null;
    const fences = r.end(r.optionalList(readFence));
    const refusal = this.refusal(consumer, fences);
    if (refusal !== NONE) {
      emit('refusing', { type, error: refusal });
      this.stopFetching();
      this.connection.send(new Writer().int16(type).int16(refusal).string(options.consumer));
      return false;
    }
    const answer = new Writer().int16(type).int16(NONE).string(options.consumer);
    if (type === PING) return this.answerPing(answer, retries);
    if (type === STOP_FETCHER) {
      const offsets = this.assignment?.offsets() ?? [];
      this.stopFetching();
      emit('stopped', { positions: positionsOf(offsets) });
      this.report(answer, offsets);
    } else {
      this.stopFetching();
      this.startFetching(ownership, brokers, fences?.[0] ?? null);
    }
    this.connection.send(answer);
    return true;
  }

  refusal(consumer, fences) {
    if (consumer !== options.consumer) return UNKNOWN_CONSUMER_ID;
    const fence = fences?.[0] ?? null;
    if (this.seen !== null && (fence === null || fence.epoch < this.seen.epoch)) return STALE_EPOCH;
    if (fence !== null) this.seen = fence;
    return NONE;
  }

  answerPing(answer, retries) {
    if (this.leaving && this.reportedAtLeaving && retries === 0) return false;
    const offsets = this.assignment?.offsets() ?? [];
    emit('ping', { retries, positions: positionsOf(offsets) });
    this.report(answer, offsets);
    this.connection.send(answer);
    if (!this.leaving) return true;
    // Nothing is processed after the report: it would be delivered again.
    if (this.assignment !== null) this.assignment.stop();
    this.reportedAtLeaving = true;
    return autoCommit;
  }

  report(answer, offsets) {
    if (!autoCommit) return;
    answer.list(offsets, (w, { topic, partition, offset }) => w.string(topic).string(partition).int64(offset));
  }

  startFetching(ownership, brokers, fence) {
    const partitions = ownership.flatMap((one) => one.partitions);
    emit('started', { positions: positionsOf(partitions), threads: ownership.map((one) => one.thread) });
    this.assignment = new Assignment(partitions, brokers, fence, this.restarts, (reason, one) => {
      if (one !== null) this.restarts.set(key(one.topic, one.partition), one.offset);
      this.connection?.fail(new Error(reason));
    });
    if (this.leaving) this.assignment.stop();
  }
}

const consumer = new Consumer();
process.stdin.resume().on('end', () => consumer.leave());
consumer.run().then(() => process.stdin.destroy());
