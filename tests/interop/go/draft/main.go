// A consumer of the 0.8 draft, written from docs/wire-draft.md alone: no Kafka library, only sockets.
//
// Arguments: HOST:PORT of a broker, group, consumer id, topic_count, session timeout in ms, whether it commits
// automatically. It writes what happens as lines of JSON; it leaves, as the draft's consumer does, when its stdin ends.
package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	fetch           = 1
	clusterMetadata = 5
	registerAs      = 6
	ping            = 7
	stopFetcher     = 8
	startFetcher    = 9

	outOfRange = 1
	unknown    = 3
	wrongName  = 103
	maxFrame   = 16 << 20
	maxFetch   = 1 << 16
	backOff    = 500 * time.Millisecond
	pollPause  = 50 * time.Millisecond
)

// Refusals that the same request would meet again.
var final = map[int16]bool{24: true, 26: true, 101: true, 104: true, 105: true}

// ---- bytes

type writer struct{ data []byte }

func (w *writer) int16(value int16) *writer {
	w.data = binary.BigEndian.AppendUint16(w.data, uint16(value))
	return w
}

func (w *writer) int32(value int32) *writer {
	w.data = binary.BigEndian.AppendUint32(w.data, uint32(value))
	return w
}

func (w *writer) int64(value int64) *writer {
	w.data = binary.BigEndian.AppendUint64(w.data, uint64(value))
	return w
}

func (w *writer) bool(value bool) *writer {
	one := byte(0)
	if value {
		one = 1
	}
	w.data = append(w.data, one)
	return w
}

func (w *writer) string(value string) *writer {
	w.int16(int16(len(value)))
	w.data = append(w.data, value...)
	return w
}

// reader reads a frame; what is too short panics with errShort.
type reader struct{ data []byte }

var errShort = errors.New("the frame is too short")

func (r *reader) take(count int) []byte {
	if count < 0 || count > len(r.data) {
		panic(errShort)
	}
	taken := r.data[:count]
	r.data = r.data[count:]
	return taken
}

func (r *reader) int16() int16   { return int16(binary.BigEndian.Uint16(r.take(2))) }
func (r *reader) int32() int32   { return int32(binary.BigEndian.Uint32(r.take(4))) }
func (r *reader) int64() int64   { return int64(binary.BigEndian.Uint64(r.take(8))) }
func (r *reader) string() string { return string(r.take(int(r.int16()))) }

// link is a connection of frames.
type link struct{ net.Conn }

func dial(address string, timeout time.Duration) (*link, error) {
	connection, err := net.DialTimeout("tcp", address, timeout)
	return &link{connection}, err
}

func (l *link) send(w *writer) error {
	_, err := l.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(w.data))), w.data...))
	return err
}

// next returns the next frame, which has to come in time.
func (l *link) next(timeout time.Duration) (*reader, error) {
	if err := l.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	size := make([]byte, 4)
	if _, err := io.ReadFull(l, size); err != nil {
		return nil, err
	}
	count := binary.BigEndian.Uint32(size)
	if count > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes", count)
	}
	body := make([]byte, count)
	_, err := io.ReadFull(l, body)
	return &reader{body}, err
}

func (l *link) ask(w *writer, timeout time.Duration) (*reader, error) {
	if err := l.send(w); err != nil {
		return nil, err
	}
	return l.next(timeout)
}

// ---- the consumer

type partition struct{ topic, name string }

func (p partition) MarshalText() ([]byte, error) { return []byte(p.topic + "/" + p.name), nil }

type consumer struct {
	bootstrap, group, id, topicCount string
	session                          time.Duration
	autoCommit                       bool

	mutex     sync.Mutex
	positions map[partition]int64 // of what it owns; negative while not known
	stop      chan struct{}       // closed to stop the fetchers
	fetchers  sync.WaitGroup
	brokers   map[int32]string
	leaving   chan struct{}
}

func tell(what string, more map[string]any) {
	line := map[string]any{"what": what}
	for name, value := range more {
		line[name] = value
	}
	text, _ := json.Marshal(line)
	fmt.Println(string(text))
}

func readBrokers(r *reader) map[int32]string {
	brokers := map[int32]string{}
	for count := r.int16(); count > 0; count-- {
		id, host, port := r.int32(), r.string(), r.int32()
		brokers[id] = net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	return brokers
}

// findCoordinator asks one broker.
func (c *consumer) findCoordinator(address string) (string, error) {
	connection, err := dial(address, c.session)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	r, err := connection.ask(new(writer).int16(clusterMetadata), c.session)
	if err != nil {
		return "", err
	}
	if code := r.int16(); code != 0 {
		return "", fmt.Errorf("error %d", code)
	}
	coordinator := r.int32()
	c.brokers = readBrokers(r)
	if found, ok := c.brokers[coordinator]; ok {
		return found, nil
	}
	return "", errors.New("there is no coordinator")
}

// run is one registration, from the discovery to the end of the connection; it returns whether the consumer has ended.
func (c *consumer) run() (ended bool, err error) {
	defer func() {
		if short := recover(); short != nil {
			err = fmt.Errorf("%v", short)
		}
	}()
	address, err := c.findCoordinator(c.bootstrap)
	if err != nil {
		return false, err
	}
	coordinator, err := dial(address, c.session)
	if err != nil {
		return false, err
	}
	defer coordinator.Close()
	defer c.stopFetchers() // first, before the connection is closed
	request := new(writer).int16(registerAs).string(c.group).string(c.id).string(c.topicCount)
	request.bool(c.autoCommit).string("smallest").int32(int32(c.session.Milliseconds()))
	r, err := coordinator.ask(request, 2*c.session)
	if err != nil {
		return false, err
	}
	if code := r.int16(); code != 0 {
		tell("refused", map[string]any{"error": code})
		return final[code], fmt.Errorf("refused with %d", code)
	}
	tell("registered", nil)
	if len(r.data) > 0 { // section 2: the partitions are here
		c.startFetchers(readOwnership(r))
	}
	return c.serve(coordinator)
}

// serve answers the coordinator until the connection ends.
func (c *consumer) serve(coordinator *link) (bool, error) {
	hasAnsweredLast := false
	for {
		r, err := coordinator.next(c.session)
		if err != nil {
			return false, err
		}
		kind := r.int16()
		answer := new(writer).int16(kind)
		if name := r.string(); name != c.id {
			answer.int16(wrongName).string(c.id)
			coordinator.send(answer)
			return false, fmt.Errorf("a request for %s", name)
		}
		answer.int16(0).string(c.id)
		switch kind {
		case ping:
			retries := r.int32()
			if hasAnsweredLast && retries == 0 {
				return true, nil
			}
			tell("ping", map[string]any{"retries": retries, "positions": c.report(answer)})
		case stopFetcher:
			c.stopFetchers()
			tell("stopped", map[string]any{"positions": c.report(answer)})
			c.positions = map[partition]int64{}
		case startFetcher:
			c.stopFetchers()
			owned := readOwnership(r)
			c.brokers = readBrokers(r)
			c.startFetchers(owned)
		default:
			return false, fmt.Errorf("a request of type %d", kind)
		}
		if err := coordinator.send(answer); err != nil {
			return false, err
		}
		select {
		case <-c.leaving:
			if kind == ping && !c.autoCommit {
				return true, nil
			}
			hasAnsweredLast = hasAnsweredLast || kind == ping
		default:
		}
	}
}

// report adds offset_info: of all partitions whose position is known, or nothing at all without auto-commit.
func (c *consumer) report(answer *writer) map[partition]int64 {
	known := map[partition]int64{}
	if !c.autoCommit {
		return known
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	list := new(writer)
	for owned, offset := range c.positions {
		if offset >= 0 {
			known[owned] = offset
			list.string(owned.topic).string(owned.name).int64(offset)
		}
	}
	answer.int16(int16(len(known)))
	answer.data = append(answer.data, list.data...)
	return known
}

func readOwnership(r *reader) map[partition]int64 {
	owned := map[partition]int64{}
	for threads := r.int16(); threads > 0; threads-- {
		r.string() // the thread: this consumer has one
		for count := r.int16(); count > 0; count-- {
			owned[partition{r.string(), r.string()}] = r.int64()
		}
	}
	return owned
}

// ---- fetching

func (c *consumer) startFetchers(owned map[partition]int64) {
	tell("started", map[string]any{"positions": owned})
	c.positions, c.stop = owned, make(chan struct{})
	byBroker := map[int32][]partition{}
	for each := range owned {
		broker, _, _ := strings.Cut(each.name, "-")
		id, _ := strconv.Atoi(broker)
		byBroker[int32(id)] = append(byBroker[int32(id)], each)
	}
	for id, partitions := range byBroker {
		c.fetchers.Add(1)
		go c.fetchFrom(c.brokers[id], partitions, c.stop)
	}
}

func (c *consumer) stopFetchers() {
	if c.stop != nil {
		close(c.stop)
		c.fetchers.Wait()
		c.stop = nil
	}
}

func (c *consumer) fetchFrom(address string, partitions []partition, stop chan struct{}) {
	defer c.fetchers.Done()
	var broker *link
	for {
		for _, each := range partitions {
			select {
			case <-stop:
				if broker != nil {
					broker.Close()
				}
				return
			default:
			}
			var err error
			if broker == nil {
				broker, err = dial(address, c.session)
			}
			if err == nil {
				err = c.fetchOne(broker, each)
			}
			if err != nil {
				tell("fetch failed", map[string]any{"error": err.Error()})
				broker = nil
			}
		}
		time.Sleep(pollPause)
	}
}

func (c *consumer) fetchOne(broker *link, each partition) (err error) {
	defer func() {
		if short := recover(); short != nil {
			err = fmt.Errorf("%v", short)
		}
	}()
	_, number, _ := strings.Cut(each.name, "-")
	index, _ := strconv.Atoi(number)
	c.mutex.Lock()
	offset := c.positions[each]
	c.mutex.Unlock()
	request := new(writer).int16(fetch).string(each.topic).int32(int32(index)).int64(offset).int32(maxFetch)
	r, err := broker.ask(request, c.session)
	if err != nil {
		return err
	}
	code, first, _ := r.int16(), r.int64(), r.int64()
	next, values := offset, []string{}
	switch {
	case code == outOfRange:
		next = first // auto_offset_rest is smallest
	case code == unknown: // later, perhaps
	case code != 0:
		return fmt.Errorf("error %d", code)
	}
	for count := r.int16(); count > 0; count-- {
		at, size := r.int64(), r.int32()
		values = append(values, string(r.take(int(size))))
		next = at + 1
	}
	c.mutex.Lock()
	c.positions[each] = next
	c.mutex.Unlock()
	if len(values) > 0 {
		tell("records", map[string]any{"partition": each, "offset": offset, "values": values})
	}
	return nil
}

func main() {
	milliseconds, err := strconv.Atoi(os.Args[5])
	if err != nil {
		panic(err)
	}
	c := &consumer{
		bootstrap: os.Args[1], group: os.Args[2], id: os.Args[3], topicCount: os.Args[4],
		session: time.Duration(milliseconds) * time.Millisecond, autoCommit: os.Args[6] == "true",
		positions: map[partition]int64{}, leaving: make(chan struct{}),
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(c.leaving)
	}()
	for {
		ended, err := c.run()
		if err != nil {
			tell("failed", map[string]any{"error": err.Error()})
		}
		if ended && err != nil {
			os.Exit(1) // a refusal that is final
		}
		select {
		case <-c.leaving:
			return
		case <-time.After(backOff):
		}
	}
}
