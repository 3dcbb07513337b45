// A member by franz-go. It speaks the line protocol of tests/support/clients/lines.py.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"interop/lines"
)

var balancers = map[string]kgo.GroupBalancer{
	"range":              kgo.RangeBalancer(),
	"roundrobin":         kgo.RoundRobinBalancer(),
	"sticky":             kgo.StickyBalancer(),
	"cooperative-sticky": kgo.CooperativeStickyBalancer(),
}

type logger struct{ teller *lines.Teller }

func (logger) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l logger) Log(level kgo.LogLevel, text string, pairs ...any) {
	name := "warning"
	if level == kgo.LogLevelError {
		name = "error"
	}
	l.teller.Log(name, fmt.Sprint(text, " ", pairs))
}

type member struct {
	settings lines.Settings
	teller   *lines.Teller
	client   *kgo.Client
	polled   chan struct{} // closed when polling has ended
}

func (m *member) options() []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(m.settings.Bootstrap),
		kgo.ClientID(m.settings.ClientID),
		kgo.WithLogger(logger{m.teller}),
	}
}

func (m *member) Join() error {
	changed := func(tell func([]int32)) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			tell(partitions[m.settings.Topic])
		}
	}
	milliseconds := func(count int) time.Duration { return time.Duration(count) * time.Millisecond }
	balancer, known := balancers[m.settings.Assignor]
	if !known {
		balancer = kgo.StickyBalancer() // which stands for the coordinator's uniform assignor
	}
	options := append(m.options(),
		kgo.Balancers(balancer),
		kgo.ConsumerGroup(m.settings.Group),
		kgo.ConsumeTopics(m.settings.Topic),
		kgo.SessionTimeout(milliseconds(m.settings.SessionTimeoutMs)),
		kgo.HeartbeatInterval(milliseconds(m.settings.HeartbeatIntervalMs)),
		kgo.RebalanceTimeout(milliseconds(m.settings.RebalanceTimeoutMs)),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(changed(m.teller.Gain)),
		kgo.OnPartitionsRevoked(changed(m.teller.Lose)),
		kgo.OnPartitionsLost(changed(m.teller.Lose)),
	)
	if m.settings.Assignor == "uniform" { // of the coordinator: a member of KIP-848
		options = append(options, kgo.ServerSideBalancer())
	}
	if m.settings.InstanceID != nil {
		options = append(options, kgo.InstanceID(*m.settings.InstanceID))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	m.client, m.polled = client, make(chan struct{})
	go m.poll(client)
	return nil
}

func (m *member) poll(client *kgo.Client) {
	defer close(m.polled)
	for {
		fetches := client.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		for _, e := range fetches.Errors() {
			m.teller.Log("error", fmt.Sprint("polled: ", e))
		}
		var records []lines.Record
		fetches.EachRecord(func(r *kgo.Record) {
			records = append(records, lines.Record{Partition: r.Partition, Offset: r.Offset, Value: string(r.Value)})
		})
		m.teller.Saw(records...)
	}
}

func (m *member) Leave() error {
	m.client.Close() // leaves the group, unless the member is a static one
	<-m.polled
	return nil
}

func (m *member) Commit(positions map[int32]int64) error {
	offsets := map[int32]kgo.EpochOffset{}
	for partition, offset := range positions {
		offsets[partition] = kgo.EpochOffset{Epoch: -1, Offset: offset}
	}
	var failed error
	m.client.CommitOffsetsSync(
		context.Background(),
		map[string]map[int32]kgo.EpochOffset{m.settings.Topic: offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
			failed = err
			if response == nil {
				return
			}
			for _, topic := range response.Topics {
				for _, partition := range topic.Partitions {
					failed = errors.Join(failed, kerr.ErrorForCode(partition.ErrorCode))
				}
			}
		},
	)
	return failed
}

func (m *member) Produce(records []lines.Record) error {
	client, err := kgo.NewClient(append(m.options(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		return err
	}
	defer client.Close()
	var batch []*kgo.Record
	for _, r := range records {
		batch = append(batch, &kgo.Record{Topic: m.settings.Topic, Partition: r.Partition, Value: []byte(r.Value)})
	}
	results := client.ProduceSync(context.Background(), batch...)
	for i, record := range batch { // the results come in the order of their completion
		records[i].Offset = record.Offset
	}
	return results.FirstErr()
}

func main() {
	lines.Serve(func(settings lines.Settings, teller *lines.Teller) lines.Member {
		return &member{settings: settings, teller: teller}
	})
}
