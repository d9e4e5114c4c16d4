-- Refuse what `core/text.py` refuses as a name, key, topic or tag. All `check_…` functions repeat rules of Python for
-- the values of SQL producers. Their limits are filled in from Python.
create function check_text_v1(what text, value text, most integer default {{name_limit}}) returns void
    language plpgsql immutable parallel safe
    as $$
declare
    refused constant text := '[{{refused_range}}]';
    shown constant text := quote_literal(regexp_replace(left(value, 80), refused, chr(65533), 'g'));
begin
    if value is null or length(value) not between 1 and most then
        raise exception '% %: it has 1 to % characters', what, coalesce(shown, 'null'), most
            using errcode = 'invalid_parameter_value';
    end if;
    if value ~ refused then
        raise exception '% %: it has the character U+%, which no name, key, topic or tag may have',
            what, shown, lpad(upper(to_hex(ascii(substring(value from refused)))), 4, '0')
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
