"""The verdict `lost`, in SQL: messages that their sender knows and their shard does not."""

from typing import Final

# Is the shard's log whole there? A shard is its process, and each that took its messages when it
# was gone.
ABSENT: Final = """
CREATE OR REPLACE TEMP TABLE missing AS
WITH holder AS (
  SELECT number AS shard, process FROM processes WHERE role = 'shard'
  UNION SELECT shard, shard_process FROM (
    SELECT DISTINCT shard, shard_process FROM messages WHERE shard_process IS NOT NULL)
), unheard AS (
  SELECT * FROM messages WHERE at_shard = 0 AND replica_line IS NOT NULL AND refused IS NULL
    AND (outcome IN {done} OR outcome IN ('sent again', 'unfinished'))
)
SELECT m.*, m.sequence >> 56 AS link, h.process AS at_process
FROM unheard m LEFT JOIN holder h USING (shard)
UNION ALL SELECT m.*, m.sequence >> 56, NULL FROM unheard m SEMI JOIN holder USING (shard)
WHERE shard NOT IN (SELECT number FROM processes WHERE role = 'shard' AND number IS NOT NULL);
CREATE OR REPLACE TEMP TABLE absent AS
WITH there AS (
  SELECT sender, sequence, sequence >> 56 AS link, shard, shard_process, received_at, replied_at
  FROM messages SEMI JOIN missing USING (sender, shard) WHERE received_at IS NOT NULL
)
SELECT row_number() OVER () AS id, m.*, before.received_at AS lo, after.replied_at AS hi
FROM missing m
ASOF LEFT JOIN there before ON before.sender = m.sender AND before.link = m.link
  AND before.shard = m.shard AND before.shard_process = m.at_process
  AND before.sequence < m.sequence
ASOF LEFT JOIN there after ON after.sender = m.sender AND after.link = m.link
  AND after.shard = m.shard AND after.shard_process = m.at_process
  AND after.sequence > m.sequence;
CREATE OR REPLACE TEMP TABLE absent_unsure AS
SELECT a.id, any_value(g.file) AS file, any_value(g.line) AS line
FROM absent a, margin JOIN gaps g ON g.process = a.at_process
  AND (g.to_at IS NULL OR a.lo IS NULL OR g.to_at >= a.lo - s)
  AND (g.from_at IS NULL OR a.hi IS NULL OR g.from_at <= a.hi + s)
GROUP BY a.id;
-- Answered, or given up, when all that are known to have been this shard had left: by which one?
INSERT INTO absent_unsure
SELECT min(id), any_value(e.file), any_value(e.line)
FROM absent a JOIN processes p ON p.process = a.at_process
LEFT JOIN messages final ON final.sender = a.sender AND final.sequence = a.line_of
LEFT JOIN "left" e ON e.process = p.process
WHERE a.outcome IN {done} OR final.outcome IN {done} OR EXISTS (
  FROM member_joined j ANTI JOIN members USING (incarnation) WHERE j.role = 'shard')
GROUP BY a.sender, a.sequence
HAVING bool_and(p.ended AND wall(p.boot, p.last_at) < wall(a.replica_boot,
  coalesce(a.answered_at, final.answered_at, a.enqueued_at)));
"""

LOST: Final = """
INSERT INTO verdicts
SELECT 'lost', 'unknown', NULL, NULL, NULL, NULL, NULL, shard, count(*),
  'there is no log of shard-' || shard, [min(replica_file)], [min(replica_line)]
FROM absent WHERE at_process IS NULL GROUP BY shard;
INSERT INTO verdicts
SELECT 'lost',
  CASE WHEN bool_or(u.id IS NOT NULL) THEN 'unknown'
    WHEN any_value(a.outcome) IN {done} THEN 'bad'
    WHEN any_value(a.outcome) = 'sent again' THEN
      CASE WHEN any_value(final.outcome) IN {done} THEN 'harmless'
        WHEN any_value(a.kind) = 'Push' THEN 'bad' ELSE 'harmless' END
    WHEN any_value(a.kind) = 'Push' THEN 'bad' ELSE 'harmless' END,
  a.sender, a.sequence, any_value(a.kind), any_value(a.job), any_value(a.replica),
  any_value(a.shard), 1,
  CASE WHEN any_value(a.outcome) IN {done} THEN 'answered, but the shard has no line of it'
    WHEN any_value(a.outcome) = 'sent again' THEN 'did not come to the shard'
      || CASE WHEN any_value(a.at_broker) > 0 THEN ', the broker passed it on' ELSE '' END
      || CASE WHEN any_value(final.outcome) IN {done} THEN '; another copy of it was answered'
        ELSE '; sent again, and not answered' END
    ELSE 'never answered, and the shard has no line of it' END
    || CASE WHEN bool_or(u.id IS NOT NULL) THEN '; lines are missing there' ELSE '' END,
  list_filter([any_value(a.replica_file), any_value(a.broker_file), any_value(u.file)],
    lambda x : x IS NOT NULL),
  list_filter([any_value(a.replica_line), any_value(a.broker_line), any_value(u.line)],
    lambda x : x IS NOT NULL)
FROM absent a LEFT JOIN absent_unsure u ON u.id = a.id
LEFT JOIN messages final ON final.sender = a.sender AND final.sequence = a.line_of
GROUP BY a.sender, a.sequence HAVING bool_and(a.at_process IS NOT NULL);
"""
