"""SCRAM credentials that clients describe, set and delete (KIP-554).

Laws:

* Functions of the credentials that there are: an answer, and what changes. Who keeps them is `coordinator.access`.
* A request may change one credential of a user, as in Kafka; a user with a wrong change has none made.
* What Kafka's controller refuses is refused with its code and text. Beyond that a name that SCRAM cannot carry, and a
  salt shorter than its server side takes, are UNACCEPTABLE_CREDENTIAL (93): their users could not log in.

Source: kafka `ScramControlManager.java` (alterCredentials), `ScramImage.java` (describe).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Refused, refused_in
from kcoord_wire.coordinator.security.authentication import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    Credential,
    check_name,
)
from kcoord_wire.kernel.settings import SettingsError
from kcoord_wire.protocol.error_codes import ErrorCode

MOST_CREDENTIALS: Final = 10_000
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}

Credentials = Mapping[str, Mapping[str, Credential]]
"""Mechanism to user to credential."""

Changes = dict[tuple[str, str], Credential | None]
"""Mechanism and user to what is set; None for what is deleted."""


def describe_credentials(
    known: Credentials, request: m.DescribeUserScramCredentialsRequest
) -> m.DescribeUserScramCredentialsResponse:
    """Return the answer to DescribeUserScramCredentials."""
    names = [user.name for user in request.users or ()]
    if not names:
        names = sorted({name for users in known.values() for name in users})
    times = Counter(names)
    answer = m.DescribeUserScramCredentialsResponse()
    for name in times:
        result = m.DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult(user=name)
        answer.results.append(result)
        with refused_in(result):
            if times[name] > 1:
                detail = "Cannot describe SCRAM credentials for the same user twice in a single request"
                raise Refused(ErrorCode.DUPLICATE_RESOURCE, f"{detail}: {name}")
            result.credential_infos = [
                m.DescribeUserScramCredentialsResponseCredentialInfo(
                    mechanism=number, iterations=known[mechanism][name].iterations
                )
                for number, mechanism in _MECHANISMS.items()
                if name in known[mechanism]
            ]
            if not result.credential_infos:
                detail = "Attempt to describe a user credential that does not exist"
                raise Refused(ErrorCode.RESOURCE_NOT_FOUND, f"{detail}: {name}")
    return answer


def alter_credentials(
    known: Credentials, request: m.AlterUserScramCredentialsRequest
) -> tuple[m.AlterUserScramCredentialsResponse, Changes]:
    """Return the answer to AlterUserScramCredentials, and what changes."""
    parts: list[Any] = [*request.deletions, *request.upsertions]
    times = Counter(part.name for part in parts)
    answer = m.AlterUserScramCredentialsResponse()
    changes: Changes = {}
    count = sum(map(len, known.values()))
    for part in {part.name: part for part in parts}.values():
        result = m.AlterUserScramCredentialsResponseAlterUserScramCredentialsResult(user=part.name, error_message=None)
        answer.results.append(result)
        with refused_in(result):
            if times[part.name] > 1:
                detail = "A user credential cannot be altered twice in the same request"
                raise Refused(ErrorCode.DUPLICATE_RESOURCE, detail)
            mechanism, credential = _altered(known, part)
            if credential is not None and count + len(changes) >= MOST_CREDENTIALS:
                raise Refused(ErrorCode.POLICY_VIOLATION, f"There are {MOST_CREDENTIALS:,} credentials.")
            changes[mechanism, part.name] = credential
    return answer, changes


def _altered(known: Credentials, part: Any) -> tuple[str, Credential | None]:
    """Return the mechanism of a part of a request, and the credential that it sets; None if it deletes.

    :raises Refused: it cannot
    """
    if not part.name:
        raise _unacceptable("Username must not be empty")
    mechanism = _MECHANISMS.get(part.mechanism)
    if mechanism is None:
        raise Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(part, m.AlterUserScramCredentialsRequestScramCredentialDeletion):
        if part.name not in known[mechanism]:
            detail = "Attempt to delete a user credential that does not exist"
            raise Refused(ErrorCode.RESOURCE_NOT_FOUND, detail)
        return mechanism, None
    if part.iterations < MIN_ITERATIONS:
        raise _unacceptable("Too few iterations")
    if part.iterations > MAX_ITERATIONS:
        raise _unacceptable("Too many iterations")
    if not part.salted_password:
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
    try:
        check_name(part.name, "user")
        return mechanism, Credential.of_salted(mechanism, part.salted_password, part.salt, part.iterations)
    except (SettingsError, ValueError) as error:
        raise _unacceptable(str(error)) from None


def _unacceptable(text: str) -> Refused:
    return Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
