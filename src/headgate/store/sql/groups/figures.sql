SELECT g.groups, g.inactive, g.ignored, c.connected, c.disconnected, c.forgotten
FROM (SELECT count(*) AS groups, count(*) FILTER (WHERE granted_to IS NULL) AS inactive,
             coalesce(sum(ignored), 0)::bigint AS ignored
      FROM headgate.consumer_group g WHERE EXISTS (SELECT FROM headgate.consumer c WHERE c."group" = g.id)) g,
     (SELECT count(*) FILTER (WHERE connectivity = 'connected') AS connected,
             count(*) FILTER (WHERE connectivity = 'disconnected') AS disconnected,
             count(*) FILTER (WHERE connectivity = 'forgotten') AS forgotten
      FROM headgate.consumer) c
