-- Of the streams that nodes run for a datasource: whether the sources of all have ended, and whether one is quarantined.
-- The holder of a grant says that it is quarantined before it gives the stream back.
SELECT coalesce(bool_and(s.owner IS NULL AND s.rests IS NOT NULL AND st.detail = 'finished'), false) AS finished,
       coalesce(bool_or((s.owner IS NULL OR s.epoch = st.epoch) AND st.worker_status = 'ERROR'
                        AND st.detail = 'quarantined'), false) AS quarantined
FROM headgate.stream s
JOIN headgate.datasource d ON d.id = s.datasource AND s.index < d.dealt
LEFT JOIN headgate.datasource_state st ON st.stream = s.id
WHERE s.datasource = $1
