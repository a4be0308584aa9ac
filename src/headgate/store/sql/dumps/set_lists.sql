-- The chunks that the next run is for; without numbers of tables ($2): all.
UPDATE headgate.dump_table t SET listed = CASE WHEN $2::integer[] IS NOT NULL THEN
    array(SELECT e::integer FROM unnest($2::integer[], $3::text[]) AS u (number, chunks), json_array_elements_text(u.chunks::json) e
          WHERE u.number = t.number) END
WHERE dump = $1
