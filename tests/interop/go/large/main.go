// A franz-go producer of large records: what becomes of each, as one line of JSON.
//
// Arguments: the address, a topic with six partitions. Six records of 1 MB go to one partition each, together in one
// request where the client likes; then one of 5 MiB, and a small one.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.DefaultProduceTopic(os.Args[2]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(16<<20),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerLinger(500*time.Millisecond),
	)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	ctx, stop := context.WithTimeout(context.Background(), 100*time.Second)
	defer stop()
	outcomes := make([]string, 8)
	produce := func(number int, partition int32, size int, waits *sync.WaitGroup) {
		waits.Add(1)
		record := &kgo.Record{Partition: partition, Value: make([]byte, size)}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			outcomes[number] = fmt.Sprint(err)
			waits.Done()
		})
	}
	var waits sync.WaitGroup
	for partition := range 6 {
		produce(partition, int32(partition), 1_000_000, &waits)
	}
	waits.Wait()
	produce(6, 0, 5<<20, &waits)
	waits.Wait()
	produce(7, 1, 10, &waits)
	waits.Wait()
	text, _ := json.Marshal(outcomes)
	fmt.Println(string(text))
}
