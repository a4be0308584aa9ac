DELETE FROM headgate.incident i USING unnest($1::text[], $2::text[]) AS u (rule, subject)
WHERE i.rule = u.rule AND i.subject = u.subject
