// A member by sarama. It speaks the line protocol of tests/support/clients/lines.py.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"interop/lines"
)

var strategies = map[string]sarama.BalanceStrategy{
	"range":      sarama.NewBalanceStrategyRange(),
	"roundrobin": sarama.NewBalanceStrategyRoundRobin(),
	"sticky":     sarama.NewBalanceStrategySticky(),
}

// logger tells the lines of sarama's log, which have no levels.
type logger struct{ teller *lines.Teller }

func (l logger) Print(v ...any)                 { l.teller.Log("warning", strings.TrimSpace(fmt.Sprint(v...))) }
func (l logger) Printf(format string, v ...any) { l.Print(fmt.Sprintf(format, v...)) }
func (l logger) Println(v ...any)               { l.Print(fmt.Sprintln(v...)) }

type member struct {
	settings lines.Settings
	teller   *lines.Teller
	group    sarama.ConsumerGroup
	session  chan sarama.ConsumerGroupSession // holds the one that runs
	stop     context.CancelFunc
	stopped  chan struct{}
	linger   atomic.Int64 // nanoseconds for which a handler runs on at the end of a session
}

func (m *member) config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.ClientID = m.settings.ClientID
	return config
}

func (m *member) Join() error {
	milliseconds := func(count int) time.Duration { return time.Duration(count) * time.Millisecond }
	config := m.config()
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = milliseconds(m.settings.SessionTimeoutMs)
	config.Consumer.Group.Heartbeat.Interval = milliseconds(m.settings.HeartbeatIntervalMs)
	config.Consumer.Group.Rebalance.Timeout = milliseconds(m.settings.RebalanceTimeoutMs)
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategies[m.settings.Assignor]}
	if m.settings.InstanceID != nil {
		config.Consumer.Group.InstanceId = *m.settings.InstanceID
	}
	group, err := sarama.NewConsumerGroup([]string{m.settings.Bootstrap}, m.settings.Group, config)
	if err != nil {
		return err
	}
	var running context.Context
	running, m.stop = context.WithCancel(context.Background())
	m.group, m.stopped = group, make(chan struct{})
	go func() {
		for err := range group.Errors() {
			m.teller.Log("error", err.Error())
		}
	}()
	go func() {
		defer close(m.stopped)
		for running.Err() == nil {
			err := group.Consume(running, []string{m.settings.Topic}, m)
			if err != nil && !errors.Is(err, sarama.ErrClosedConsumerGroup) {
				m.teller.Log("error", err.Error())
			}
		}
	}()
	return nil
}

// Setup is called when a session of the group begins, which a rebalance ends.
func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.session <- session
	m.teller.Gain(session.Claims()[m.settings.Topic])
	return nil
}

// Cleanup is called at the end of a session.
func (m *member) Cleanup(session sarama.ConsumerGroupSession) error {
	<-m.session
	m.teller.Lose(session.Claims()[m.settings.Topic])
	return nil
}

// Linger has handlers run on for so long when a session ends.
func (m *member) Linger(duration time.Duration) { m.linger.Store(int64(duration)) }

// ConsumeClaim polls one partition.
func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	defer func() { time.Sleep(time.Duration(m.linger.Load())) }()
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			m.teller.Saw(lines.Record{Partition: message.Partition, Offset: message.Offset, Value: string(message.Value)})
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *member) Leave() error {
	m.stop()
	<-m.stopped
	return m.group.Close()
}

func (m *member) Commit(positions map[int32]int64) error {
	session := <-m.session
	defer func() { m.session <- session }()
	for partition, offset := range positions {
		session.MarkOffset(m.settings.Topic, partition, offset, "")
	}
	session.Commit() // what goes wrong comes through the group's errors
	return nil
}

func (m *member) Produce(records []lines.Record) error {
	config := m.config()
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1 // idempotence asks for it
	producer, err := sarama.NewSyncProducer([]string{m.settings.Bootstrap}, config)
	if err != nil {
		return err
	}
	var batch []*sarama.ProducerMessage
	for _, r := range records {
		value := sarama.StringEncoder(r.Value)
		batch = append(batch, &sarama.ProducerMessage{Topic: m.settings.Topic, Partition: r.Partition, Value: value})
	}
	err = producer.SendMessages(batch)
	for i, message := range batch {
		records[i].Offset = message.Offset
	}
	return errors.Join(err, producer.Close())
}

func main() {
	lines.Serve(func(settings lines.Settings, teller *lines.Teller) lines.Member {
		sarama.Logger = logger{teller}
		return &member{settings: settings, teller: teller, session: make(chan sarama.ConsumerGroupSession, 1)}
	})
}
