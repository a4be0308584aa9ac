-- What is wanted of a dump, for processes that join it. `pools` share its rate.
SELECT status, wanted, rate, snapshot, coalesce(until > now(), false) AS is_run, array(
    SELECT DISTINCT regexp_replace(worker, '\.\d+$', '') FROM (
        SELECT worker, now() AS at FROM headgate.dump_chunk WHERE dump = $1 AND state = 'leased' AND until > now()
        UNION ALL (SELECT worker, at FROM headgate.dump_attempt WHERE dump = $1 ORDER BY id DESC LIMIT 50)
    ) AS lately WHERE at > now() - interval '2 s') AS pools
FROM headgate.dump WHERE id = $1
