"""The transaction coordinator, without IO: transactional ids, their producers and transactions."""

__all__: list[str] = []
