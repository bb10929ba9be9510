"""Everything durable: tables, repositories, unit of work, job queue, events and blobs."""
