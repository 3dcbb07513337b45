// Measures franz-go's balancers: the question and the answer are those of tests/support/java/Assign.java, with the
// processor time of the whole process alone. Subscriptions are decoded before, and assignments encoded after, the time.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var balancers = map[string]kgo.GroupBalancer{
	"range":              kgo.RangeBalancer(),
	"roundrobin":         kgo.RoundRobinBalancer(),
	"sticky":             kgo.StickyBalancer(),
	"cooperative-sticky": kgo.CooperativeStickyBalancer(),
}

type question struct {
	Assignor string
	Size     [3]int
	Odd      bool
	Change   string
	Seconds  float64
	Calls    int
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Processor time of the process: user and system.
func cpu() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

func balance(balancer kgo.GroupBalancer, members []kmsg.JoinGroupResponseMember, topics map[string]int32) (kgo.IntoSyncAssignment, float64) {
	group, _, err := balancer.MemberBalancer(members)
	if err != nil {
		panic(err)
	}
	before := cpu()
	var plan kgo.IntoSyncAssignment
	if fallible, is := group.(kgo.GroupMemberBalancerOrError); is {
		plan = must(fallible.BalanceOrError(topics))
	} else {
		plan = group.Balance(topics)
	}
	return plan, cpu() - before
}

func measure(asked question) []float64 {
	balancer := balancers[asked.Assignor]
	topics := map[string]int32{}
	var names []string
	for topic := range asked.Size[1] {
		names = append(names, fmt.Sprintf("topic-%04d", topic))
		topics[names[topic]] = int32(asked.Size[2])
	}
	join := func(member int, current map[string][]int32, generation int32) kmsg.JoinGroupResponseMember {
		wanted := append([]string(nil), names...)
		if asked.Odd && member == 0 {
			wanted = wanted[1:]
		}
		joined := kmsg.NewJoinGroupResponseMember()
		joined.MemberID = fmt.Sprintf("member-%05d", member)
		joined.ProtocolMetadata = balancer.JoinGroupMetadata(wanted, current, generation)
		return joined
	}
	var members []kmsg.JoinGroupResponseMember
	for member := range asked.Size[0] {
		members = append(members, join(member, nil, -1))
	}
	if asked.Change != "none" {
		plan, _ := balance(balancer, members, topics)
		for _, given := range plan.IntoSyncAssignment() {
			var member int
			must(fmt.Sscanf(given.MemberID, "member-%d", &member))
			members[member] = join(member, must(balancer.ParseSyncAssignment(given.MemberAssignment)), 1)
		}
		if asked.Change == "join" {
			members = append(members, join(len(members), nil, -1))
		} else {
			middle := len(members) / 2
			members = append(members[:middle], members[middle+1:]...)
		}
	}
	var times []float64
	for left := asked.Seconds; len(times) < asked.Calls && (len(times) < 3 || left > 0); {
		_, seconds := balance(balancer, members, topics)
		left -= seconds
		times = append(times, seconds)
	}
	return times
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		fmt.Println(string(must(json.Marshal(map[string]any{"cpu": measure(asked)}))))
	}
}
