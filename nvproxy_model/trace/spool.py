"""The recorder's spool, under its first name; it lives in `nvproxy_model.trace.record.spool`."""

from nvproxy_model.trace.record.spool import MAGIC, Seen, frames, keeps_values, records

__all__ = ["MAGIC", "Seen", "frames", "keeps_values", "records"]
