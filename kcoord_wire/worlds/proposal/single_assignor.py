"""One member assigns for all: JoinGroup in two phases, without SyncGroup.

    Request(join) -> Response(joined)
    Request(join) -> Response(synchronize) -> Request(synchronized) -> Response(joined)

Laws:

* The coordinator asks one member to assign, the synchronizer: the last to join, because it is the one most likely to be
  alive, but not the one that failed to in the generation before unless it is alone.
* Only the synchronizer of the present generation is accepted. Synchronized carries neither member id nor generation,
  so the coordinator knows it by the connection on which it joined. A synchronizer that answers late is refused, and
  joins again.
* Hard failure: if it has not answered in time, every waiting member gets an error and joins again. Soft failure: its
  error goes to every member, and to their applications.
* A member that joins while the synchronizer works makes the group wait for a new assignment; the others wait on.
* An assignment that gives a partition to two members, or one that does not exist, is not sent: it is a soft failure.

Source: "Kafka Client-side Assignment Proposal", "Single Client Assignor".

`VARIANTS` has all variants of the proposal by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kcoord_wire.assignors import ASSIGNORS, MemberSubscription, TopicPartition
from kcoord_wire.kernel.virtual.clock import NEVER
from kcoord_wire.messages.proposal import (
    SingleAssignorAssignment,
    SingleAssignorAssignmentTopicPartition,
    SingleAssignorJoinGroupRequest,
    SingleAssignorJoinGroupRequestJoin,
    SingleAssignorJoinGroupRequestSyncedMember,
    SingleAssignorJoinGroupRequestSynchronized,
    SingleAssignorJoinGroupResponse,
    SingleAssignorJoinGroupResponseJoined,
    SingleAssignorJoinGroupResponseMember,
    SingleAssignorJoinGroupResponseSynchronize,
    SingleAssignorMetadata,
    SingleAssignorSubscription,
)
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal.all_members import (
    AllMembersCoordinator,
    AllMembersMember,
    AssignmentError,
    SubscriptionHashMember,
    assign_checked,
    topics_of,
)
from kcoord_wire.worlds.proposal.member import ProposalMember
from kcoord_wire.worlds.proposal.proposal_coordinator import (
    Asked,
    Codec,
    Coordinator,
    CoordinatorSettings,
    Join,
    MemberSettings,
    Phase,
    Registration,
    Save,
    Strategy,
    Subscription,
)
from kcoord_wire.worlds.proposal.two_phases import TwoPhaseCoordinator, TwoPhaseMember


class SingleAssignorCoordinator(Coordinator):
    """Chooses the synchronizer, and hands out what it has decided.

    :ivar synchronizer: the member that assigns, or that has assigned; empty for none
    """

    def __init__(self, settings: CoordinatorSettings, boot: int, saved: Save | None, now: int) -> None:
        self.synchronizer = ""
        self._connection = 0
        self._times_out_at = NEVER
        self._failed = ""  # the synchronizer that was too slow
        self._states: Mapping[str, bytes] = {}
        super().__init__(settings, boot, saved, now)

    def read(self, message: SingleAssignorJoinGroupRequest) -> Join | None:
        """Return what a JoinGroup of phase Join asks for."""
        phase = message.phase
        if not isinstance(phase, SingleAssignorJoinGroupRequestJoin):
            return None
        return Join(phase.member_id, phase.session_timeout, message.protocol_type, phase.member_metadata)

    def refusal(self, error: ErrorCode) -> SingleAssignorJoinGroupResponse:
        """Return the response with an error."""
        return SingleAssignorJoinGroupResponse(error_code=error, phase=SingleAssignorJoinGroupResponseJoined())

    def rejects(self, join: Join, others: list[Any]) -> bool:
        """The metadata is opaque: only the synchronizer can reject it."""
        return False

    def restored(self, decision: Any) -> Phase:
        """Without the states all members have to join again."""
        self._states = decision or {}
        return Phase.JOINING if decision is None else Phase.STABLE

    # ---- the synchronizer

    @property
    def deadline(self) -> int | None:
        """See `machines.Machine`."""
        due = super().deadline
        return due if self._times_out_at == NEVER else min(due or NEVER, self._times_out_at)

    def time_passed(self) -> None:
        """Fail the generation of a synchronizer that is too slow."""
        super().time_passed()
        if self._now >= self._times_out_at:
            self._failed = self.synchronizer
            self._fail(ErrorCode.REQUEST_TIMED_OUT)

    def formed(self) -> None:
        """Ask the synchronizer; all others wait on."""
        self.save(None)
        members = list(self.members)
        self.synchronizer = next((each for each in reversed(members) if each != self._failed), members[-1])
        self._failed = ""
        chosen = self.members[self.synchronizer]
        if chosen.waiting is None:
            raise AssertionError("the generation was formed although the synchronizer has not joined")
        self.phase = Phase.SYNCHRONIZING
        self._connection = chosen.waiting.connection
        self._times_out_at = self._now + self.settings.synchronization_timeout_ms
        everyone = [
            SingleAssignorJoinGroupResponseMember(member_id=member_id, member_metadata=member.offer)
            for member_id, member in self.members.items()
        ]
        response = SingleAssignorJoinGroupResponse(
            group_generation_id=self.generation,
            member_id=self.synchronizer,
            phase=SingleAssignorJoinGroupResponseSynchronize(members=everyone),
        )
        self.answer(chosen.waiting, response)
        chosen.waiting = None

    def synchronized(self, asked: Asked) -> None:
        """The synchronizer has assigned, or says why it cannot."""
        phase: SingleAssignorJoinGroupRequestSynchronized = asked.message.phase
        if self.phase is not Phase.SYNCHRONIZING or asked.caller.connection != self._connection:
            self.answer(asked.caller, self.refusal(ErrorCode.REBALANCE_IN_PROGRESS))
            return
        self.members[self.synchronizer].waiting = asked.caller
        if phase.error_code:
            self._fail(ErrorCode(phase.error_code))
            return
        self._times_out_at = NEVER
        self._states = {each.member_id: each.synced_member_state for each in phase.member_states}
        self.save(self._states)
        self.admit_all()

    def _fail(self, error: ErrorCode) -> None:
        """Answer every waiting member with an error."""
        for member in self.members.values():
            if member.waiting is not None:
                self.answer(member.waiting, self.refusal(error))
                member.waiting = None
        self.rebalance()

    def interrupted(self) -> None:
        """The synchronizer is no longer accepted."""
        self._times_out_at = NEVER
        self._connection = 0

    def still_waits(self, member: Registration) -> bool:
        """A member that waits for the synchronizer may wait on another connection."""
        return self.phase is Phase.SYNCHRONIZING and member.waiting is not None

    def joined(self, member_id: str) -> SingleAssignorJoinGroupResponse:
        """Return the state of one member."""
        phase = SingleAssignorJoinGroupResponseJoined(
            synced_member_state=self._states.get(member_id, b""),
            group_members=list(self.members) if self.settings.lists_members else [],
        )
        return SingleAssignorJoinGroupResponse(group_generation_id=self.generation, member_id=member_id, phase=phase)


class SingleAssignorMember(ProposalMember):
    """Sends its subscription; computes the assignment if it is asked to.

    :param strategies: the first assigns; no other member needs to know it
    :ivar assigned_for: as the synchronizer of the present generation, the counts for which it has assigned; it watches
        them for the group. No response says who the synchronizer was, so it remembers that across a failover
    """

    def __init__(self, settings: MemberSettings, codec: Codec, strategies: Sequence[Strategy]) -> None:
        super().__init__(settings, codec)
        self.strategy = strategies[0]
        self.assigned_for: Mapping[str, int] | None = None
        self._assigned_in = -1  # generation
        self._sent = b""
        self._decision = SingleAssignorJoinGroupRequestSynchronized()

    def join_request(self) -> SingleAssignorJoinGroupRequest:
        """Return the JoinGroup of phase Join."""
        self._sent = self._encoded()
        return self._request(
            SingleAssignorJoinGroupRequestJoin(
                session_timeout=self.settings.session_timeout_ms,
                member_id=self.member_id,
                member_metadata=self._sent,
            )
        )

    def _request(self, phase: Any) -> SingleAssignorJoinGroupRequest:
        return SingleAssignorJoinGroupRequest(group_id=self.settings.group_id, protocol_type="consumer", phase=phase)

    def _encoded(self) -> bytes:
        topics, pattern = self.subscription or Subscription()
        metadata = self.codec.encode(SingleAssignorSubscription(topics=list(topics), topic_pattern=pattern))
        version = self.settings.metadata_version
        return self.codec.encode(SingleAssignorMetadata(metadata_version=version, metadata=metadata))

    def topics_changed(self) -> None:
        """Join again with another subscription; with other topics only as the one that has assigned them."""
        is_stale = self.assigned_for is not None and self.assigned_for != self.counts
        if is_stale or self._encoded() != self._sent:
            self.rejoin()

    def joined(self, response: SingleAssignorJoinGroupResponse) -> None:
        """Assign, or take the member's share."""
        phase = response.phase
        if isinstance(phase, SingleAssignorJoinGroupResponseSynchronize):
            self.member_id = response.member_id
            self.assigned_for = self.counts
            self._assigned_in = response.group_generation_id
            self._decision = self._decide(phase)
            self.assign_until(self.now + self.settings.assign_ms)
            return
        if response.group_generation_id != self._assigned_in:
            self.assigned_for = None
        state = self.read_share(SingleAssignorAssignment, phase.synced_member_state)
        if state is not None:
            owned = [TopicPartition(each.topic, index) for each in state.assignment for index in each.partitions]
            self.enter(response.group_generation_id, response.member_id, owned)

    # ---- the synchronizer

    def _decide(self, phase: SingleAssignorJoinGroupResponseSynchronize) -> SingleAssignorJoinGroupRequestSynchronized:
        """Compute the assignment, or find the error that goes to all members."""
        try:
            members = {each.member_id: self._read(each.member_metadata) for each in phase.members}
        except ValueError:
            return SingleAssignorJoinGroupRequestSynchronized(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        try:
            assignment = assign_checked(self.strategy, self.counts, members)
        except AssignmentError:
            return SingleAssignorJoinGroupRequestSynchronized(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        states = [
            SingleAssignorJoinGroupRequestSyncedMember(member_id=member_id, synced_member_state=self._state(share))
            for member_id, share in assignment.items()
        ]
        return SingleAssignorJoinGroupRequestSynchronized(member_states=states)

    def _read(self, data: bytes) -> MemberSubscription:
        metadata = self.codec.decode(SingleAssignorMetadata, data)
        if metadata.metadata_version != self.settings.metadata_version:
            raise ValueError(f"no such version of the metadata: {metadata.metadata_version!r}")
        subscription = self.codec.decode(SingleAssignorSubscription, metadata.metadata)
        return MemberSubscription(
            topics_of(Subscription(tuple(subscription.topics), subscription.topic_pattern), self.counts)
        )

    def _state(self, share: Mapping[str, Sequence[int]]) -> bytes:
        return self.codec.encode(
            SingleAssignorAssignment(
                assignment=[
                    SingleAssignorAssignmentTopicPartition(topic=topic, partitions=list(indexes))
                    for topic, indexes in share.items()
                ]
            )
        )

    def send_assignment(self) -> None:
        """Send the assignment, or the error."""
        self.send(self._request(self._decision), self.settings.join_timeout_ms)


class Variant(NamedTuple):
    """A variant of the proposal.

    :ivar family: of its JoinGroup, see schemas/README.md
    :ivar coordinator: makes the coordinator's machine
    :ivar member: makes a member's machine
    """

    family: str
    coordinator: Callable[[CoordinatorSettings, int, Save | None, int], Coordinator]
    member: Callable[[MemberSettings, Codec, Sequence[Strategy]], ProposalMember]


VARIANTS: Final[Mapping[str, Variant]] = MappingProxyType(
    {
        "all_members": Variant("all-members", AllMembersCoordinator, AllMembersMember),
        "subscription_hash": Variant("all-members", AllMembersCoordinator, SubscriptionHashMember),
        "single_assignor": Variant("single-assignor", SingleAssignorCoordinator, SingleAssignorMember),
        "two_phases": Variant("proposal", TwoPhaseCoordinator, TwoPhaseMember),
    }
)

ROUND_ROBIN: Final = Strategy("round-robin", 0, ASSIGNORS["roundrobin"].assign)
RANGE: Final = Strategy("range", 0, ASSIGNORS["range"].assign)
