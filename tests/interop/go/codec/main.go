// Measures franz-go's kmsg: the question and the answer are those of tests/support/java/Codec.java, with the processor time
// of the whole process, garbage collector included.
//
// Frames are read and written as kgo and kfake do: kmsg's RequestFormatter writes a request (its length before it, which
// is cut off); kmsg has nothing for the header of a response, nor for reading one, which kbin does.
package main

import (
	"bytes"
	"encoding/json"
	"os"
	"syscall"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What requests and responses have in common.
type message interface {
	SetVersion(int16)
	IsFlexible() bool
	ReadFrom([]byte) error
	AppendTo([]byte) []byte
}

type question struct {
	Key, Version int16
	Request      bool
	Data         []byte
	Frame        *struct {
		Number int32
		Client string
	}
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
	end := cpu() + int64(seconds*1e9)
	for first := true; first || cpu() < end; first = false {
		before := cpu()
		for range batch {
			call()
		}
		made = append(made, float64(cpu()-before)/float64(batch))
	}
	return made
}

// What a call made, so that the compiler cannot leave the call out.
var (
	sink   any
	number int32
	client *string
)

func read(made message, version int16, data []byte) message {
	made.SetVersion(version)
	if err := made.ReadFrom(data); err != nil {
		panic(err)
	}
	return made
}

func readRequest(data []byte) message {
	reader := kbin.Reader{Src: data}
	key, version := reader.Int16(), reader.Int16()
	number, client = reader.Int32(), reader.NullableString()
	made := kmsg.RequestForKey(key)
	made.SetVersion(version)
	if made.IsFlexible() {
		kmsg.SkipTags(&reader)
	}
	return read(made, version, reader.Src)
}

func readResponse(key, version int16, data []byte) message {
	reader := kbin.Reader{Src: data}
	number = reader.Int32()
	made := kmsg.ResponseForKey(key)
	made.SetVersion(version)
	if made.IsFlexible() {
		kmsg.SkipTags(&reader)
	}
	return read(made, version, reader.Src)
}

func appendResponse(buffer []byte, number int32, response message) []byte {
	buffer = kbin.AppendInt32(buffer, number)
	if response.IsFlexible() {
		buffer = append(buffer, 0)
	}
	return response.AppendTo(buffer)
}

// How to read what was asked for, how to write it at the end of a buffer, and how many bytes before it are not asked for.
func (asked question) calls() (decode func() message, write func([]byte) []byte, before int) {
	switch {
	case asked.Frame == nil && asked.Request:
		decode = func() message { return read(kmsg.RequestForKey(asked.Key), asked.Version, asked.Data) }
	case asked.Frame == nil:
		decode = func() message { return read(kmsg.ResponseForKey(asked.Key), asked.Version, asked.Data) }
	case asked.Request:
		formatter := kmsg.NewRequestFormatter(kmsg.FormatterClientID(asked.Frame.Client))
		request := readRequest(asked.Data).(kmsg.Request)
		decode = func() message { return readRequest(asked.Data) }
		return decode, func(buffer []byte) []byte { return formatter.AppendRequest(buffer, request, asked.Frame.Number) }, 4
	default:
		decode = func() message { return readResponse(asked.Key, asked.Version, asked.Data) }
		response := decode()
		return decode, func(buffer []byte) []byte { return appendResponse(buffer, asked.Frame.Number, response) }, 0
	}
	return decode, decode().AppendTo, 0
}

func main() {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		panic(err)
	}
	decode, write, before := asked.calls()
	written := write(nil)
	kept := make([]byte, 0, len(written))
	if !bytes.Equal(write(kept), written) {
		panic("other bytes into a kept buffer")
	}
	answer := map[string]any{"data": written[before:]}
	for _, each := range []struct {
		name string
		call func()
	}{
		{"decode", func() { sink = decode() }},
		{"encode", func() { sink = write(nil) }},
		{"kept", func() { kept = write(kept[:0]) }},
	} {
		rounds(each.call, asked.Batch, asked.Warm)
		answer[each.name] = rounds(each.call, asked.Batch, asked.Seconds)
	}
	must(os.Stdout.Write(must(json.Marshal(answer))))
}
