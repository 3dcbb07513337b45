// A member of Marshal, written from docs/wire-marshal.md alone: at least once, with franz-go for Kafka.
//
//	marshal -bootstrap HOST:PORT -group G -client C -topics orders[,payments] [-interval 60s] [-max-claims N]
//
// It writes what happens as lines of JSON, and releases what it holds when it gets SIGTERM.
package main

import (
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	mathrand "math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	heartbeat     = "Heartbeat"
	claiming      = "ClaimingPartition"
	releasing     = "ReleasingPartition"
	releaseAll    = "ReleaseGroup"
	pollTime      = 50 * time.Millisecond
	maxPartitions = 100_000
	appendTime    = 1 // the type of a record's timestamp: LogAppendTime
)

// ---- text of the messages ----------------------------------------------------------------------------------------------

type sender struct{ instance, client string }

type entry struct {
	kind         string
	time         int64
	from         sender
	group, topic string
	partition    int32
	number       int64 // current_offset, or msg_expire_time
}

// Fields of a message behind its type.
var fields = map[string]int{heartbeat: 8, claiming: 7, releasing: 8, releaseAll: 8}

func parse(value []byte) (entry, bool) {
	if !utf8.Valid(value) {
		return entry{}, false
	}
	parts := strings.Split(string(value), "/")
	count, known := fields[parts[0]]
	if !known || len(parts) != count+1 {
		return entry{}, false
	}
	var numbers [9]int64
	for _, i := range []int{1, 2, 7, 8}[:count-4] {
		var err error
		if numbers[i], err = strconv.ParseInt(parts[i], 10, 64); err != nil {
			return entry{}, false
		}
	}
	if numbers[7] < 0 || numbers[7] >= maxPartitions {
		return entry{}, false
	}
	return entry{parts[0], numbers[2], sender{parts[3], parts[4]}, parts[5], parts[6], int32(numbers[7]), numbers[8]}, true
}

// The coordination partition of a topic.
func home(topic string, partitions int) int32 {
	sum := md5.Sum([]byte(topic))
	return int32(binary.LittleEndian.Uint64(sum[:8]) % uint64(partitions))
}

// ---- what the log says -------------------------------------------------------------------------------------------------

type place struct {
	topic     string
	partition int32
}

type holding struct {
	held     bool
	by       sender // the last holder
	former   string // the instance that it has replaced by a Heartbeat
	since    int64  // time of its claim, s by its own clock
	released int64  // time of its release, likewise
	offset   int64
	beat     int64 // log's time of its claim or last Heartbeat, ms
}

// One coordination partition.
type progress struct {
	isTrimmed bool
	first     int64 // time of the first entry, ms; 0 before it
	time      int64 // the largest
	paused    int64 // until then, by that time
	read      time.Time
	next      int64 // offset
	end       int64 // offset: nothing is claimed before it was read up to here
}

// The log's time, if an entry came now.
func (p *progress) now() int64 { return p.time + time.Since(p.read).Milliseconds() }

func (p *progress) isWarm(interval int64) bool { return !p.isTrimmed || p.time-p.first > 3*interval }

type state struct {
	group    string
	interval int64 // ms
	places   map[place]*holding
	logs     map[int32]*progress
}

func (s *state) free(h *holding, now int64) bool {
	return h == nil || !h.held || now-h.beat > 2*s.interval
}

// Takes in the next entry of a coordination partition.
func (s *state) apply(e entry, partition int32, appended int64) {
	log := s.logs[partition]
	log.time = max(log.time, appended)
	if log.first == 0 {
		log.first = log.time
	}
	if e.group != s.group {
		return
	}
	if e.kind == releaseAll {
		log.paused = log.time + (e.number-e.time)*1000
		return
	}
	p := place{e.topic, e.partition}
	h := s.places[p]
	if h == nil {
		h = &holding{}
	}
	age := log.time - h.beat
	isHolders := h.held && h.by == e.from && age <= 2*s.interval && e.time >= h.since
	switch e.kind {
	case claiming:
		isCopy := h.by == e.from && e.time <= h.released
		if s.free(h, log.time) && !isCopy {
			s.places[p] = &holding{held: true, by: e.from, since: e.time, offset: h.offset, beat: log.time}
		}
	case heartbeat:
		isRestart := h.held && h.by.client == e.from.client && h.former != e.from.instance && age < s.interval
		if !isHolders && !isRestart && log.isWarm(s.interval) {
			return
		}
		if h.by != e.from {
			h.former, h.since = h.by.instance, e.time
		}
		h.held, h.by, h.beat, h.offset = true, e.from, log.time, max(h.offset, e.number)
		s.places[p] = h
	case releasing:
		if isHolders {
			h.held, h.released, h.offset = false, e.time, max(h.offset, e.number)
		}
	}
}

// ---- the member --------------------------------------------------------------------------------------------------------

type claim struct {
	next  int64     // the next offset to process
	sent  time.Time // when the last Heartbeat that has landed was sent
	first int64     // offset of the first Heartbeat: before it the log may name the former process
}

type member struct {
	client       *kgo.Client
	admin        *kadm.Client
	log          string // the coordination topic
	group        string
	self         sender
	interval     time.Duration
	maxClaims    int
	state        state
	coordination map[string]int32 // topic: its coordination partition
	counts       map[string]int32 // topic: its partitions
	claims       map[place]*claim
	stamps       map[place]int64     // time of the last message about a place
	leftAlone    map[place]time.Time // released by this process, or another's claim won: not claimed before
	pending      *place              // claimed, and not yet read back
	pendingAt    int64
}

func emit(what string, more map[string]any) {
	line := map[string]any{"what": what}
	for name, value := range more {
		line[name] = value
	}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		log.Fatal(err)
	}
}

func (m *member) write(kind string, p place, numbers ...int64) (int64, error) {
	m.stamps[p] = max(m.stamps[p], time.Now().Unix())
	from := m.self.instance + "/" + m.self.client
	text := fmt.Sprintf("%s/1/%d/%s/%s/%s/%d", kind, m.stamps[p], from, m.group, p.topic, p.partition)
	for _, number := range numbers {
		text += fmt.Sprintf("/%d", number)
	}
	within, cancel := context.WithTimeout(context.Background(), m.interval)
	defer cancel()
	record := &kgo.Record{Topic: m.log, Partition: m.coordination[p.topic], Value: []byte(text)}
	err := m.client.ProduceSync(within, record).FirstErr()
	return record.Offset, err
}

func (m *member) prepare(topics []string) error {
	ctx := context.Background()
	details, err := m.admin.ListTopics(ctx, append(topics, m.log)...)
	if err != nil {
		return err
	}
	if details[m.log].Err != nil {
		return details[m.log].Err
	}
	starts, err := m.admin.ListStartOffsets(ctx, m.log)
	if err != nil {
		return err
	}
	ends, err := m.admin.ListEndOffsets(ctx, m.log)
	if err != nil {
		return err
	}
	for _, topic := range topics {
		if details[topic].Err != nil {
			return details[topic].Err
		}
		m.counts[topic] = int32(len(details[topic].Partitions))
		partition := home(topic, len(details[m.log].Partitions))
		m.coordination[topic] = partition
		start, _ := starts.Lookup(m.log, partition)
		end, _ := ends.Lookup(m.log, partition)
		m.state.logs[partition] = &progress{
			isTrimmed: start.Offset > 0, read: time.Now(), next: start.Offset, end: end.Offset,
		}
		m.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{m.log: {partition: kgo.NewOffset().At(start.Offset)}})
	}
	return nil
}

func (m *member) poll() {
	within, cancel := context.WithTimeout(context.Background(), pollTime)
	defer cancel()
	fetches := m.client.PollFetches(within)
	fetches.EachError(func(topic string, partition int32, err error) {
		if !errors.Is(err, context.DeadlineExceeded) {
			fmt.Fprintf(os.Stderr, "%s/%d: %v\n", topic, partition, err)
		}
	})
	fetches.EachRecord(func(r *kgo.Record) {
		if r.Topic == m.log {
			m.read(r)
		}
	})
	m.checkClaims()
	fetches.EachRecord(func(r *kgo.Record) {
		p := place{r.Topic, r.Partition}
		if c := m.claims[p]; c != nil && r.Topic != m.log {
			emit("record", map[string]any{"topic": r.Topic, "partition": r.Partition, "offset": r.Offset, "value": string(r.Value)})
			c.next = r.Offset + 1
		}
	})
}

func (m *member) read(r *kgo.Record) {
	log := m.state.logs[r.Partition]
	log.next, log.read = r.Offset+1, time.Now()
	e, ok := parse(r.Value)
	partition, isWanted := m.coordination[e.topic]
	if !ok || e.kind != releaseAll && (!isWanted || partition != r.Partition) {
		return
	}
	appended := e.time * 1000
	if r.Attrs.TimestampType() == appendTime {
		appended = r.Timestamp.UnixMilli()
	}
	m.state.apply(e, r.Partition, appended)
}

func (m *member) holds(p place) bool {
	h := m.state.places[p]
	return h != nil && h.held && h.by == m.self
}

func (m *member) logOf(topic string) *progress { return m.state.logs[m.coordination[topic]] }

func (m *member) checkClaims() {
	for p := range m.claims {
		if m.logOf(p.topic).next > m.claims[p].first && !m.holds(p) {
			m.lose(p, "another member holds it")
		}
	}
}

func (m *member) lose(p place, reason string) {
	m.stop(p)
	emit("lost", map[string]any{"topic": p.topic, "partition": p.partition, "reason": reason})
}

func (m *member) stop(p place) {
	m.client.RemoveConsumePartitions(map[string][]int32{p.topic: {p.partition}})
	delete(m.claims, p)
}

func (m *member) caughtUp() bool {
	for _, log := range m.state.logs {
		if log.next < log.end {
			return false
		}
	}
	return true
}

func (m *member) isPaused(topic string) bool {
	log := m.logOf(topic)
	return log.now() < log.paused
}

// Looks who has won, once the claim is read back.
func (m *member) settle() {
	if m.pending == nil || m.logOf(m.pending.topic).next <= m.pendingAt {
		return
	}
	p := *m.pending
	m.pending = nil
	if m.holds(p) {
		m.begin(p)
	} else {
		m.leftAlone[p] = time.Now().Add(m.interval / 4)
	}
}

// Claims one partition at a time.
func (m *member) claimMore() {
	m.settle()
	if m.pending != nil || len(m.claims) >= m.maxClaims {
		return
	}
	var free []place
	for topic, count := range m.counts {
		log := m.logOf(topic)
		if m.isPaused(topic) || !log.isWarm(m.state.interval) {
			continue
		}
		for partition := range count {
			p := place{topic, partition}
			h := m.state.places[p]
			switch {
			case m.claims[p] != nil || time.Now().Before(m.leftAlone[p]):
			case m.state.free(h, log.now()):
				free = append(free, p)
			case h.by.client == m.self.client && h.by != m.self && log.now()-h.beat < m.state.interval:
				m.begin(p) // the former process of this client held it
				return
			}
		}
	}
	if len(free) == 0 {
		return
	}
	p := free[mathrand.IntN(len(free))]
	offset, err := m.write(claiming, p)
	if err != nil {
		fmt.Fprintf(os.Stderr, "claim: %v\n", err)
		return
	}
	m.pending, m.pendingAt = &p, offset
}

func (m *member) begin(p place) {
	offset := m.state.places[p].offset
	if offset == 0 {
		offset = m.unknownOffset(p)
	}
	sent := time.Now()
	landed, err := m.write(heartbeat, p, offset)
	if err != nil {
		fmt.Fprintf(os.Stderr, "heartbeat: %v\n", err)
		return
	}
	m.commit(p, offset)
	m.claims[p] = &claim{offset, sent, landed}
	emit("claimed", map[string]any{"topic": p.topic, "partition": p.partition, "offset": offset})
	m.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{p.topic: {p.partition: kgo.NewOffset().At(offset)}})
}

// What the group has committed in Kafka, or the partition's start.
func (m *member) unknownOffset(p place) int64 {
	ctx := context.Background()
	if committed, err := m.admin.FetchOffsets(ctx, m.group); err == nil {
		if o, ok := committed.Lookup(p.topic, p.partition); ok && o.At >= 0 {
			return o.At
		}
	}
	starts, err := m.admin.ListStartOffsets(ctx, p.topic)
	if err != nil {
		return 0
	}
	start, _ := starts.Lookup(p.topic, p.partition)
	return max(start.Offset, 0)
}

func (m *member) commit(p place, offset int64) {
	var offsets kadm.Offsets
	offsets.AddOffset(p.topic, p.partition, offset, -1)
	within, cancel := context.WithTimeout(context.Background(), m.interval)
	defer cancel()
	if _, err := m.admin.CommitOffsets(within, m.group, offsets); err != nil {
		fmt.Fprintf(os.Stderr, "commit: %v\n", err)
	}
}

func (m *member) beat() {
	for p, c := range m.claims {
		if m.isPaused(p.topic) {
			m.release(p)
			continue
		}
		age := time.Since(c.sent)
		if age > m.interval {
			m.lose(p, "no heartbeat has landed for an interval")
			continue
		}
		if age < m.interval/3 {
			continue
		}
		sent := time.Now()
		if _, err := m.write(heartbeat, p, c.next); err != nil {
			fmt.Fprintf(os.Stderr, "heartbeat: %v\n", err)
			continue
		}
		c.sent = sent
		m.commit(p, c.next)
	}
}

func (m *member) release(p place) {
	next := m.claims[p].next
	m.stop(p)
	m.leftAlone[p] = time.Now().Add(m.interval + time.Second)
	if _, err := m.write(releasing, p, next); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		return
	}
	m.commit(p, next)
	emit("released", map[string]any{"topic": p.topic, "partition": p.partition, "offset": next})
}

func main() {
	log.SetFlags(0)
	bootstrap := flag.String("bootstrap", "127.0.0.1:9092", "HOST:PORT")
	group := flag.String("group", "", "the group")
	id := flag.String("client", "", "the client id")
	topics := flag.String("topics", "", "the topics, joined by commas")
	coordination := flag.String("log", "__marshal", "the coordination topic")
	interval := flag.Duration("interval", time.Minute, "the heartbeat interval of all members")
	maxClaims := flag.Int("max-claims", 1<<30, "how many partitions to hold at most")
	flag.Parse()
	for _, name := range append(strings.Split(*topics, ","), *group, *id) {
		if name == "" || strings.Contains(name, "/") {
			log.Fatalf("%q cannot be written in a message", name)
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(*bootstrap),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchMaxWait(4*pollTime),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	random := make([]byte, 4)
	rand.Read(random)
	m := &member{
		client: client, admin: kadm.NewClient(client), log: *coordination,
		group: *group, self: sender{hex.EncodeToString(random), *id},
		interval: *interval, maxClaims: *maxClaims,
		state:        state{*group, interval.Milliseconds(), map[place]*holding{}, map[int32]*progress{}},
		coordination: map[string]int32{}, counts: map[string]int32{},
		claims: map[place]*claim{}, stamps: map[place]int64{}, leftAlone: map[place]time.Time{},
	}
	if err := m.prepare(strings.Split(*topics, ",")); err != nil {
		log.Fatal(err)
	}
	leave := make(chan os.Signal, 1)
	signal.Notify(leave, syscall.SIGTERM, syscall.SIGINT)
	for !m.caughtUp() {
		m.poll()
	}
	emit("ready", map[string]any{"instance": m.self.instance})
	for {
		select {
		case <-leave:
			for m.pending != nil {
				m.poll()
				m.settle()
			}
			for p := range m.claims {
				m.release(p)
			}
			emit("left", nil)
			return
		default:
		}
		m.poll()
		m.beat()
		m.claimMore()
	}
}
