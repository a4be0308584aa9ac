"""What Kafka's errors mean to a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from headgate.errors import Cause, ConnectorError, NotConnected
from headgate.text import one_line

_DENIED = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_WRONG = {
    KafkaError._INVALID_ARG,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.UNSUPPORTED_VERSION,
}
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_REFUSED = {
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}
_SIZES = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
OF_RECORDS = _REFUSED | _SIZES


class LostOwnershipError(Exception):
    """A producer with the same transactional id came later, or the brokers ended our transaction. Who owns the stream
    is in the topic of positions."""


def is_fenced(error: KafkaError) -> bool:
    """Whether a transactional producer was replaced."""
    return error.code() in _FENCED


def weight(error: KafkaError | None) -> int:
    """How much an error tells that the client reports from the background. 0: it heals by itself."""
    if error is None:
        return 0
    if error.code() in _DENIED or error.fatal() or _is_untrusted(error):
        return 2
    return int(error.code() == KafkaError._ALL_BROKERS_DOWN)


def _is_untrusted(error: KafkaError) -> bool:
    return error.code() == KafkaError._SSL and "verify failed" in error.str()


def meaning(error: KafkaError, where: str) -> ConnectorError:
    """What the worker should do about it. Kafka's texts name brokers, topics and ids, and never a value."""
    text = one_line(f"Kafka {where}: {error.str()}", 300)
    if error.code() in _DENIED:
        return ConnectorError(text, cause=Cause.AUTH, hint="look at sasl, tls and the rights of the user")
    if _is_untrusted(error):
        return ConnectorError(text, cause=Cause.CONFIG, hint="tls.ca names the certificates to trust")
    if error.code() in _WRONG:
        return ConnectorError(text, cause=Cause.CONFIG)
    return NotConnected(text)


@contextmanager
def steer_worker(where: str) -> Iterator[None]:
    """Raise what the contract knows in place of what the client raises."""
    try:
        yield
    except KafkaException as error:
        raise meaning(error.args[0], where) from None
