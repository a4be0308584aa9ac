-- Whether somebody may still believe that it is active by the word of a time that was lost. Both times are the server's.
SELECT coalesce(era_began_at > now() - make_interval(secs => greatest($1, (SELECT max(lease_s) FROM headgate.consumer_group))), false)
FROM headgate.registry
