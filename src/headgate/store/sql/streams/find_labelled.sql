SELECT s.id, s.datasource, s.label FROM headgate.stream s
JOIN unnest($1::uuid[], $2::text[]) AS u (datasource, label) USING (datasource, label)
