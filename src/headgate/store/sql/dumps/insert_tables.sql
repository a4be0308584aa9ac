INSERT INTO headgate.dump_table (dump, number, name, target, job, size, fixed)
SELECT $1, u.number, u.name, u.target, u.job, $6, $7
FROM unnest($2::integer[], $3::text[], $4::text[], $5::json[]) AS u (number, name, target, job)
