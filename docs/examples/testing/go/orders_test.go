// Tests of consumers of franz-go: a rebalance, and an error that a client has to get over.
package orders

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var ready = regexp.MustCompile(`^kcoord serves on ([^, ]+),.* control at (http://[^/]+)/`)

const token = "not-for-any-others"

// A coordinator is `kcoord serve` as a process, on free ports, until its test ends. The environment variable KCOORD has
// the command if it is not `kcoord`.
type coordinator struct {
	*testing.T
	address, control string
}

func serve(t *testing.T, options ...string) coordinator {
	command := strings.Fields(os.Getenv("KCOORD"))
	if len(command) == 0 {
		command = []string{"kcoord"}
	}
	command = append(command, "serve", "--port", "0", "--control", "0", "--config", "group.initial.rebalance.delay.ms=0")
	process := exec.Command(command[0], append(command[1:], options...)...)
	process.Env = append(os.Environ(), "KCOORD_CONTROL_TOKEN="+token)
	out, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Process.Signal(syscall.SIGTERM)
		if err := process.Wait(); err != nil {
			t.Error(err)
		}
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	found := ready.FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("kcoord has not started: %q", line)
	}
	return coordinator{t, found[1], found[2]}
}

// ask sends a request to the control port and reads the JSON of its answer.
func (c coordinator) ask(method, path string, body, answer any) {
	c.Helper()
	var data []byte
	if body != nil {
		data, _ = json.Marshal(body)
	}
	request, _ := http.NewRequest(method, c.control+path, bytes.NewReader(data))
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if err := json.Unmarshal(text, answer); err != nil || response.StatusCode >= 400 {
		c.Fatalf("%s %s: %d %s", method, path, response.StatusCode, text)
	}
}

type group struct {
	Generation int `json:"generation_id"`
	Members    []struct{ Assignment map[string][]int }
}

func (c coordinator) waitUntilStable(members int) (found group) {
	c.Helper()
	c.ask("POST", "/groups/billing/wait-until-stable", map[string]int{"members": members}, &found)
	return found
}

func (c coordinator) consumer() *kgo.Client {
	c.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.address), kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"),
		kgo.DisableAutoCommit(), kgo.HeartbeatInterval(100*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DefaultProduceTopic("orders"))
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(client.Close)
	return client
}

func TestASecondConsumerTakesHalfOfThePartitions(t *testing.T) {
	c := serve(t, "--topics", "orders:4")
	c.consumer()
	c.consumer()
	before := c.waitUntilStable(2)
	for _, member := range before.Members {
		if len(member.Assignment["orders"]) != 2 {
			t.Error(before)
		}
	}
	c.ask("POST", "/groups/billing/rebalance", map[string]string{"reason": "what becomes of it?"}, &group{})
	if after := c.waitUntilStable(2); after.Generation <= before.Generation {
		t.Error(before, after)
	}
}

func TestACommitIsRepeatedWhileTheCoordinatorLoads(t *testing.T) {
	c := serve(t, "--topics", "orders:4")
	within, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := c.consumer()
	if err := client.ProduceSync(within, kgo.StringRecord("a book")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	fault := map[string]any{"action": "error", "api": "OffsetCommit", "topic": "orders",
		"error": "COORDINATOR_LOAD_IN_PROGRESS", "count": 2}
	c.ask("POST", "/faults", fault, &struct{}{})
	for _, record := range client.PollFetches(within).Records() {
		if err := client.CommitRecords(within, record); err != nil {
			t.Fatal(err)
		}
		var found struct{ Offsets map[string]map[string]int64 }
		c.ask("GET", "/groups/billing", nil, &found)
		if found.Offsets["orders"][fmt.Sprint(record.Partition)] != record.Offset+1 {
			t.Error(found)
		}
	}
	var faults []struct{ Hits int }
	c.ask("GET", "/faults", nil, &faults)
	if faults[0].Hits != 2 {
		t.Error(faults)
	}
}
