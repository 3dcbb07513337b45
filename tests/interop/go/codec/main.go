// Measures franz-go's kmsg: the question and the answer are those of tests/support/java/Codec.java, with the processor time
// of the whole process, garbage collector included.
package main

import (
	"encoding/json"
	"os"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// What requests and responses have in common.
type message interface {
	SetVersion(int16)
	ReadFrom([]byte) error
	AppendTo([]byte) []byte
}

var messages = map[string]func() message{
	"HeartbeatRequest":    func() message { return kmsg.NewPtrHeartbeatRequest() },
	"JoinGroupRequest":    func() message { return kmsg.NewPtrJoinGroupRequest() },
	"JoinGroupResponse":   func() message { return kmsg.NewPtrJoinGroupResponse() },
	"SyncGroupRequest":    func() message { return kmsg.NewPtrSyncGroupRequest() },
	"MetadataResponse":    func() message { return kmsg.NewPtrMetadataResponse() },
	"OffsetFetchResponse": func() message { return kmsg.NewPtrOffsetFetchResponse() },
}

type question struct {
	Message       string
	Version       int16
	Data          []byte
	Warm, Seconds float64
	Batch         int
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Processor time of the process in nanoseconds: user and system.
func cpu() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func rounds(call func(), batch int, seconds float64) []float64 {
	var made []float64
	end := time.Now().Add(time.Duration(seconds * 1e9))
	for first := true; first || time.Now().Before(end); first = false {
		before := cpu()
		for range batch {
			call()
		}
		made = append(made, float64(cpu()-before)/float64(batch))
	}
	return made
}

var sink any // what a call made, so that the compiler cannot leave the call out

func main() {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		panic(err)
	}
	decode := func() message {
		made := messages[asked.Message]()
		made.SetVersion(asked.Version)
		if err := made.ReadFrom(asked.Data); err != nil {
			panic(err)
		}
		return made
	}
	read := decode()
	calls := map[string]func(){
		"decode": func() { sink = decode() },
		"encode": func() { sink = read.AppendTo(nil) },
	}
	answer := map[string]any{"data": read.AppendTo(nil)}
	for name, call := range calls {
		rounds(call, asked.Batch, asked.Warm)
		answer[name] = rounds(call, asked.Batch, asked.Seconds)
	}
	must(os.Stdout.Write(must(json.Marshal(answer))))
}
