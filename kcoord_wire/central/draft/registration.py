"""The checks of RegisterConsumer (section 7).

Laws:

* A request that is refused changes nothing, and its connection stays open: the consumer closes it.
* What is accepted can be written to ZooKeeper: ids are names of nodes, topics are names of topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kcoord_wire.central.draft.events import CentralError, CoordinatorSettings
from kcoord_wire.central.draft.groups import Group, Member
from kcoord_wire.central.draft.topic_count import parse_topic_count
from kcoord_wire.messages.central import RegisterConsumerRequest
from kcoord_wire.zookeeper.layout import is_node_name

_OFFSET_RESETS: Final = ("smallest", "largest")


class RegistrationError(Exception):
    """The consumer cannot be registered.

    :ivar error: for the response
    """

    def __init__(self, error: CentralError, reason: str) -> None:
        super().__init__(reason)
        self.error = error


def check_registration(
    request: RegisterConsumerRequest, groups: Mapping[str, Group], settings: CoordinatorSettings
) -> None:
    """Check a request.

    :raises RegistrationError: with the first check that fails
    """
    if not is_node_name(request.group_id):
        raise RegistrationError(CentralError.INVALID_GROUP_ID, "the group id cannot be the name of a node")
    if not is_node_name(request.consumer_id):
        raise RegistrationError(CentralError.INVALID_CONSUMER_ID, "the consumer id cannot be the name of a node")
    group = groups.get(request.group_id)
    if group is not None and request.consumer_id in group.members:
        raise RegistrationError(CentralError.DUPLICATE_CONSUMER_ID, "the consumer id is taken")
    least, most = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not least <= request.session_timeout_ms <= most:
        raise RegistrationError(CentralError.INVALID_SESSION_TIMEOUT, f"a session timeout is {least} to {most} ms")
    if request.auto_offset_rest not in _OFFSET_RESETS:
        raise RegistrationError(CentralError.INVALID_OFFSET_RESET, "auto_offset_reset is smallest or largest")
    try:
        parse_topic_count(request.topic_count)
    except ValueError as error:
        raise RegistrationError(CentralError.INVALID_TOPIC_COUNT, str(error)) from None


def new_member(request: RegisterConsumerRequest, group: Group, connection: int) -> Member:
    """Return the consumer of a request that has been checked."""
    return Member(
        group,
        request.consumer_id,
        connection,
        parse_topic_count(request.topic_count),
        request.auto_commit,
        request.auto_offset_rest,
        request.session_timeout_ms,
        is_fenced=request.fence is not None,
    )
