-- The state of the dump, for the process that runs it; nothing if another does now. `pools` share its rate.
UPDATE headgate.dump SET until = now() + $4::interval WHERE id = $1 AND owner = $2 AND epoch = $3
RETURNING status, wanted, rate, snapshot, true AS is_run, array(
    SELECT DISTINCT regexp_replace(worker, '\.\d+$', '') FROM (
        SELECT worker, now() AS at FROM headgate.dump_chunk WHERE dump = $1 AND state = 'leased' AND until > now()
        UNION ALL (SELECT worker, at FROM headgate.dump_attempt WHERE dump = $1 ORDER BY id DESC LIMIT 50)
    ) AS lately WHERE at > now() - interval '2 s') AS pools
