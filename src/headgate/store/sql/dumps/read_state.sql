SELECT status, wanted, rate, snapshot, coalesce(until > now(), false) AS is_run FROM headgate.dump WHERE id = $1
