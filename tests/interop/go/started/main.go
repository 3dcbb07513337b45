// A test of another language: it starts kcoord serve as a process, waits for its line, and uses it.
//
// Arguments: the command, as in `python -m kcoord_wire`. It writes the values that a group's member has read, a line
// each, and then the status with which the process has ended after SIGTERM.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var ready = regexp.MustCompile(`^kcoord serves on ([^, ]+),`)

const records = 4

func start(ctx context.Context, command []string) (*exec.Cmd, string) {
	process := exec.CommandContext(ctx, command[0], append(command[1:], "serve", "--port", "0", "--topics", "orders:2")...)
	process.Stderr = os.Stderr
	out, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		log.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if found := ready.FindStringSubmatch(lines.Text()); found != nil {
			return process, found[1]
		}
	}
	log.Fatal("it has ended without its line")
	return nil, ""
}

func use(ctx context.Context, address string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DefaultProduceTopic("orders"))
	if err != nil {
		return err
	}
	defer client.Close()
	for number := range records {
		if err := client.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint("order ", number))).FirstErr(); err != nil {
			return err
		}
	}
	for read := 0; read < records; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Println(string(record.Value))
			read++
		})
	}
	return nil
}

func main() {
	within, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	process, address := start(within, os.Args[1:])
	err := use(within, address)
	process.Process.Signal(syscall.SIGTERM)
	process.Wait()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(process.ProcessState.ExitCode())
}
