"""Text from outside, made fit to travel: valid Unicode without NUL, bounded in length."""

CUT_MARK = "… [cut]"


def clean_text(text: str, limit: int | None = None) -> str:
    """``text`` without what a database or a UTF-8 writer refuses (lone surrogates, NUL), cut at ``limit``."""
    if limit is not None and len(text) > limit:
        text = text[:limit] + CUT_MARK
    return text.encode("utf-8", errors="replace").decode("utf-8").replace("\x00", "\ufffd")
