-- What became of all letters of a datasource, those whose rows are gone and those that were discarded at once included.
SELECT coalesce(sum(letters) FILTER (WHERE outcome = 'open'), 0)::bigint AS open,
       coalesce(sum(letters) FILTER (WHERE outcome = 'replayed'), 0)::bigint AS replayed,
       coalesce(sum(letters) FILTER (WHERE outcome = 'superseded'), 0)::bigint AS superseded,
       coalesce(sum(letters) FILTER (WHERE outcome = 'discarded'), 0)::bigint AS discarded,
       coalesce(sum(letters) FILTER (WHERE outcome = 'expired'), 0)::bigint AS expired,
       coalesce(sum(waiting), 0)::bigint AS waiting
FROM (
    SELECT outcome, count(*) AS letters, count(*) FILTER (WHERE replay IS NOT NULL) AS waiting
    FROM headgate.dead_letter WHERE datasource = $1 GROUP BY outcome
    UNION ALL
    SELECT p.outcome, p.letters, 0 FROM headgate.dead_letter_past p JOIN headgate.stream s ON s.id = p.stream WHERE s.datasource = $1
    UNION ALL
    SELECT 'discarded', records_skipped, 0 FROM headgate.stream WHERE datasource = $1
) AS letters
