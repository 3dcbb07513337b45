// Package lines is the program's side of the line protocol of tests/support/clients/lines.py.
package lines

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// Settings are what a client program is started with.
type Settings struct {
	Bootstrap           string  `json:"bootstrap"`
	Topic               string  `json:"topic"`
	Group               string  `json:"group"`
	ClientID            string  `json:"client_id"`
	Assignor            string  `json:"assignor"`
	InstanceID          *string `json:"instance_id"`
	SessionTimeoutMs    int     `json:"session_timeout_ms"`
	HeartbeatIntervalMs int     `json:"heartbeat_interval_ms"`
	RebalanceTimeoutMs  int     `json:"rebalance_timeout_ms"`
}

// Record is a value at a place of the topic.
type Record struct {
	Partition int32
	Offset    int64
	Value     string
}

func (r Record) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{r.Partition, r.Offset, r.Value})
}

// UnmarshalJSON reads a partition and a value: a record that has no offset yet.
func (r *Record) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&r.Partition, &r.Value})
}

// Member is a client library's consumer and producer behind the commands.
type Member interface {
	Join() error
	Leave() error
	Commit(positions map[int32]int64) error
	// Produce fills in the offsets.
	Produce(records []Record) error
}

// Lingerer is a member that can take its time to give partitions up.
type Lingerer interface {
	Linger(time.Duration)
}

// Teller writes events; it knows what the member owns and where it stands. All of it may be called from any goroutine.
type Teller struct {
	mutex sync.Mutex
	owned map[int32]bool
	next  map[int32]int64
}

// NewTeller tells of a member that owns nothing yet.
func NewTeller() *Teller {
	return &Teller{owned: map[int32]bool{}, next: map[int32]int64{}}
}

type fields map[string]any

func (t *Teller) tell(event string, more fields) {
	line := fields{"event": event}
	for name, value := range more {
		line[name] = value
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(os.Stdout, "%s\n", text)
}

// Gain tells that these partitions are owned too.
func (t *Teller) Gain(partitions []int32) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, partition := range partitions {
		t.owned[partition] = true
	}
	t.tellOwned()
}

// Lose tells that these partitions are owned no longer.
func (t *Teller) Lose(partitions []int32) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, partition := range partitions {
		delete(t.owned, partition)
		delete(t.next, partition)
	}
	t.tellOwned()
}

func (t *Teller) tellOwned() {
	owned := []int32{}
	for partition := range t.owned {
		owned = append(owned, partition)
	}
	slices.Sort(owned)
	t.tell("owns", fields{"partitions": owned})
}

// Saw tells that these records have been polled.
func (t *Teller) Saw(records ...Record) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, record := range records {
		if t.owned[record.Partition] {
			t.next[record.Partition] = record.Offset + 1
		}
	}
	if len(records) > 0 {
		t.tell("records", fields{"records": records})
	}
}

// Log tells what the library logged; level is "warning" or "error".
func (t *Teller) Log(level, text string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.tell("log", fields{"level": level, "text": text})
}

func (t *Teller) positions() (map[int32]int64, [][2]int64) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	positions, pairs := map[int32]int64{}, [][2]int64{}
	for partition, offset := range t.next {
		positions[partition] = offset
		pairs = append(pairs, [2]int64{int64(partition), offset})
	}
	slices.SortFunc(pairs, func(a, b [2]int64) int { return int(a[0] - b[0]) })
	return positions, pairs
}

type command struct {
	Do      string   `json:"do"`
	Records []Record `json:"records"`
	Ms      int      `json:"ms"`
}

// Serve serves the commands until the end of input.
func Serve(create func(Settings, *Teller) Member) {
	var settings Settings
	if err := json.Unmarshal([]byte(os.Args[1]), &settings); err != nil {
		panic(err)
	}
	teller := NewTeller()
	member := create(settings, teller)
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<20)
	for input.Scan() {
		var c command
		if err := json.Unmarshal(input.Bytes(), &c); err != nil {
			panic(err)
		}
		answer, err := do(member, teller, c)
		teller.mutex.Lock()
		if err != nil {
			teller.tell("failed", fields{"do": c.Do, "text": err.Error()})
		} else {
			teller.tell(c.Do, answer)
		}
		teller.mutex.Unlock()
	}
}

func do(member Member, teller *Teller, c command) (fields, error) {
	switch c.Do {
	case "join":
		return nil, member.Join()
	case "leave":
		return nil, member.Leave()
	case "produce":
		err := member.Produce(c.Records)
		return fields{"records": c.Records}, err
	case "commit":
		positions, pairs := teller.positions()
		return fields{"offsets": pairs}, member.Commit(positions)
	}
	if lingerer, ok := member.(Lingerer); ok && c.Do == "linger" {
		lingerer.Linger(time.Duration(c.Ms) * time.Millisecond)
		return nil, nil
	}
	return nil, fmt.Errorf("no command %q", c.Do)
}
